#include "commands.hpp"
namespace longstraw::program {
void add_train(command_line&) {}
}  // namespace longstraw::program
