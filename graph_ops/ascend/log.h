// One line per refusal, on standard error, where the driver of `atc` reads it.
//
// The ONNX parser turns a FAILED of a plugin into "Model parse to graph failed" and nothing else,
// so the reason has to leave on a channel of our own:
//
//     [pagedom-plugin] ERROR node '/layers.0/attn/PagedAttention' (pagedom::1::PagedAttention): ...
#ifndef PAGEDOM_ASCEND_LOG_H_
#define PAGEDOM_ASCEND_LOG_H_

#include <string>

namespace pagedom {

void LogError(const std::string& node, const std::string& origin, const std::string& what);

}  // namespace pagedom

#endif  // PAGEDOM_ASCEND_LOG_H_
