#include "log.h"

#include <cstdio>

namespace pagedom {

void LogError(const std::string& node, const std::string& origin, const std::string& what) {
  (void)std::fprintf(stderr, "[pagedom-plugin] ERROR node '%s' (%s): %s\n", node.c_str(),
                     origin.c_str(), what.c_str());
  (void)std::fflush(stderr);
}

}  // namespace pagedom
