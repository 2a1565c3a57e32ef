// Test headers of pagedom: the GE operators that the plugin makes.
//
// Inputs as "name", "name?" (optional) or "name*" (dynamic: none until registered); attributes as
// "name:type" with i int, f float, s string, t tensor. Order is the prototype's.
#ifndef PAGEDOM_TEST_GRAPH_PROTOTYPES_H_
#define PAGEDOM_TEST_GRAPH_PROTOTYPES_H_

#include <map>
#include <string>
#include <vector>

namespace ge {
namespace test {

struct Prototype {
  std::vector<std::string> inputs;
  std::vector<std::string> outputs;
  std::vector<std::string> attrs;
};

inline const std::map<std::string, Prototype>& Prototypes() {
  static const std::map<std::string, Prototype> table = {
      {"Data", {{"x"}, {"y"}, {"index:i"}}},
      {"Const", {{}, {"y"}, {"value:t"}}},
      {"Cast", {{"x"}, {"y"}, {"dst_type:i"}}},
      {"Reshape", {{"x", "shape"}, {"y"}, {"axis:i", "num_axes:i"}}},
      {"ConcatD", {{"x*"}, {"y"}, {"concat_dim:i", "N:i"}}},
      {"SwiGlu", {{"x"}, {"y"}, {"dim:i"}}},
      {"RmsNorm", {{"x", "gamma"}, {"y", "rstd"}, {"epsilon:f"}}},
      {"RotaryPositionEmbedding", {{"x", "cos", "sin", "rotate?"}, {"y"}, {"mode:i"}}},
      {"ScatterNdUpdate", {{"var", "indices", "updates"}, {"var"}, {}}},
      {"ScatterPaKvCache",
       {{"key", "key_cache", "slot_mapping", "value", "value_cache", "compress_lens?",
         "compress_seq_offset?", "seq_lens?"},
        {"key_cache", "value_cache"},
        {"cache_mode:s", "scatter_mode:s"}}},
      {"FusedInferAttentionScore",
       {{"query", "key*", "value*", "pse_shift?", "atten_mask?", "actual_seq_lengths?",
         "actual_seq_lengths_kv?", "dequant_scale1?", "quant_scale1?", "dequant_scale2?",
         "quant_scale2?", "quant_offset2?", "antiquant_scale?", "antiquant_offset?",
         "block_table?", "query_padding_size?", "kv_padding_size?"},
        {"attention_out", "softmax_lse"},
        {"num_heads:i", "scale:f", "pre_tokens:i", "next_tokens:i", "input_layout:s",
         "num_key_value_heads:i", "sparse_mode:i", "inner_precise:i", "block_size:i"}}},
      {"IncreFlashAttention",
       {{"query", "key*", "value*", "pse_shift?", "atten_mask?", "actual_seq_lengths?",
         "dequant_scale1?", "quant_scale1?", "dequant_scale2?", "quant_scale2?", "quant_offset2?",
         "antiquant_scale?", "antiquant_offset?", "block_table?", "kv_padding_size?"},
        {"attention_out"},
        {"num_heads:i", "scale_value:f", "input_layout:s", "num_key_value_heads:i", "block_size:i",
         "inner_precise:i"}}},
  };
  return table;
}

}  // namespace test
}  // namespace ge

#endif  // PAGEDOM_TEST_GRAPH_PROTOTYPES_H_
