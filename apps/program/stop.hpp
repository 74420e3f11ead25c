#pragma once
// SIGINT and SIGTERM as a wish: a job that runs is stopped at its next look, files are completed,
// and the exit code says which signal it was. A second signal ends the process at once.

namespace longstraw::program {

void install_stop_signals();
/// 0, or the signal that asked for the end.
int stop_signal();
/// "SIGINT" or "SIGTERM".
const char* stop_signal_name();

}  // namespace longstraw::program
