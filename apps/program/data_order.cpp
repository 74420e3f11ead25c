namespace longstraw::program {}
