#include <longstraw/messages/job.hpp>

namespace longstraw::messages {

std::string_view to_string(gradient_mode m) { return m == gradient_mode::full ? "full" : "frozen"; }

}  // namespace longstraw::messages
