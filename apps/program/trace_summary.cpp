#include "commands.hpp"
namespace longstraw::program {
void add_trace_summary(command_line&) {}
}  // namespace longstraw::program
