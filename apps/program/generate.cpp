#include "commands.hpp"
namespace longstraw::program {
void add_generate(command_line&) {}
}  // namespace longstraw::program
