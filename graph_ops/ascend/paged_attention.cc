// PagedAttention -> FusedInferAttentionScore, layout TND, paged cache in its BnBsH layout.
//
//     query [T,H,D] ------------------------------------------------- query
//     key_cache, value_cache [P,S,K,D] -> Reshape [P,S,K*D] ---------- key, value
//     constant bool [2048,2048], true above the diagonal ------------- atten_mask
//     block_table int32 [B,M] ---------------------------------------- block_table
//     input 4: int64 [B], cumulative ends without the leading 0 ------ actual_seq_lengths
//     input 5: int64 [B], tokens visible to each sequence ------------ actual_seq_lengths_kv
//
// Inputs 4 and 5 are value-dependent for the operator's tiling: nothing stands between them and
// the graph's inputs (compiler/lower/seq_ends.py made them so).
//
// Causality is sparse mode 3, aligned to the end of each sequence; a window is mode 4 with
// window - 1 tokens before the row and none after. Both want the compressed mask above, whatever
// the lengths are.
#include "attention_heads.h"
#include "onnx_node.h"
#include "subgraph.h"

namespace {

constexpr char kOrigin[] = "pagedom::1::PagedAttention";
constexpr int64_t kMaskSize = 2048;
constexpr int64_t kCausal = 3;
constexpr int64_t kBand = 4;
constexpr int64_t kAllTokens = 2147483647;

domi::Status Parse(const ge::Operator& source, ge::Operator& target) {
  pagedom::OnnxNode node(source, kOrigin);
  pagedom::BecomeSubgraph(kOrigin, 6, 1, &target);
  (void)pagedom::ParseAttentionHeads(&node, &target);
  const int64_t window = node.IntOr("window", -1, -1);
  if (window == 0) {
    node.Refuse("attribute 'window' is 0, must be -1 (all tokens) or at least 1");
  }
  node.RefuseNonZero("softcap", "FusedInferAttentionScore has no such attribute");
  target.SetAttr("window", window);
  return node.status();
}

ge::Operator CausalMask(pagedom::Subgraph* sub) {
  std::vector<uint8_t> mask(static_cast<size_t>(kMaskSize * kMaskSize), 0);
  for (int64_t row = 0; row < kMaskSize; ++row) {
    for (int64_t column = row + 1; column < kMaskSize; ++column) {
      mask[static_cast<size_t>(row * kMaskSize + column)] = 1;  // 1 = masked
    }
  }
  const ge::TensorDesc desc(ge::Shape({kMaskSize, kMaskSize}), ge::FORMAT_ND, ge::DT_BOOL);
  return sub->Constant("causal_mask", desc, mask.data(), mask.size());
}

void SetAttributes(pagedom::Subgraph* sub, ge::Operator* attention) {
  const int64_t window = sub->Int("window");
  const bool banded = window > 0;
  attention->SetAttr("scale", sub->Float("scale"));
  attention->SetAttr("input_layout", "TND");
  attention->SetAttr("sparse_mode", banded ? kBand : kCausal);
  attention->SetAttr("pre_tokens", banded ? window - 1 : kAllTokens);
  attention->SetAttr("next_tokens", banded ? static_cast<int64_t>(0) : kAllTokens);
  attention->SetAttr("inner_precise", static_cast<int64_t>(0));  // the only one for grouped heads
}

domi::Status Expand(const ge::Operator& op, ge::Graph& graph) {
  pagedom::Subgraph sub(op, kOrigin);
  const ge::Operator query = sub.Input("query");
  const ge::Operator key_cache = sub.Input("key_cache");
  const ge::Operator value_cache = sub.Input("value_cache");
  const ge::Operator block_table = sub.Input("block_table");
  const ge::Operator ends = sub.Input("seq_ends");
  const ge::Operator lens = sub.Input("kv_lens");
  const ge::Operator mask = CausalMask(&sub);
  ge::Operator attention =
      pagedom::MakeAttention(&sub, "FusedInferAttentionScore", query, key_cache, value_cache);
  if (!attention.IsEmpty()) {
    attention.SetInput("atten_mask", mask)
        .SetInput("actual_seq_lengths", ends)
        .SetInput("actual_seq_lengths_kv", lens)
        .SetInput("block_table", block_table);
    SetAttributes(&sub, &attention);
  }
  return sub.Finish({{attention, 0}}, &graph);
}

}  // namespace

namespace domi {

REGISTER_CUSTOM_OP("PartitionedCall")
    .FrameworkType(ONNX)
    .OriginOpType(kOrigin)
    .ParseParamsByOperatorFn(Parse)
    .ParseOpToGraphFn(Expand)
    .ImplyType(ImplyType::TVM);

}  // namespace domi
