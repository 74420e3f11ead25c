#pragma once
// The program's commands; each is declared and run by one file.

#include "options.hpp"

namespace longstraw::program {

void add_step(command_line& line);
void add_train(command_line& line);
void add_score(command_line& line);
void add_generate(command_line& line);
void add_new_model(command_line& line);
void add_audit(command_line& line);
void add_trace_summary(command_line& line);

}  // namespace longstraw::program
