# Writes OUT with the short commit of SOURCE, "+" behind it if files differ from that commit.
execute_process(COMMAND git describe --always --dirty=+ --exclude=* WORKING_DIRECTORY ${SOURCE}
                OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT commit)
  set(commit unknown)
endif()
file(CONFIGURE OUTPUT ${OUT} CONTENT "#define LONGSTRAW_COMMIT \"${commit}\"\n")
