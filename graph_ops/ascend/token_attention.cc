// TokenAttention -> IncreFlashAttention, layout BSH, paged cache in its BnBsH layout (310P).
//
//     query [T,H,D] -> Reshape [T,1,H*D] ----------------------------- query
//     key_cache, value_cache [P,S,K,D] -> Reshape [P,S,K*D] ---------- key, value
//     token_tables int32 [T,M] --------------------------------------- block_table
//     input 4: int64 [T], tokens visible to each token --------------- actual_seq_lengths
//     attention_out [T,1,H*D] -> Reshape [T,H,D]
//
// Each token is a sequence of one query token, so no mask is needed. Input 4 is value-dependent for
// the operator's tiling: nothing stands between it and the graph's input
// (compiler/lower/token_attention.py made it so).
#include "attention_heads.h"
#include "onnx_node.h"
#include "subgraph.h"

namespace {

constexpr char kOrigin[] = "pagedom::1::TokenAttention";
constexpr int64_t kMostHeadDim = 128;    // on 310P with grouped heads (the operator's tiling check)
constexpr int64_t kMostGroup = 32;       // query heads a key/value head, likewise

domi::Status Parse(const ge::Operator& source, ge::Operator& target) {
  pagedom::OnnxNode node(source, kOrigin);
  pagedom::BecomeSubgraph(kOrigin, 5, 1, &target);
  const pagedom::AttentionHeads heads = pagedom::ParseAttentionHeads(&node, &target);
  if (node.ok() && heads.query / heads.kv > kMostGroup) {
    node.Refuse("num_heads " + std::to_string(heads.query) + " over num_key_value_heads " +
                std::to_string(heads.kv) + ": IncreFlashAttention takes at most 32 a head");
  }
  if (node.ok() && (heads.dim > kMostHeadDim || heads.dim % 16 != 0)) {
    node.Refuse("head_dim " + std::to_string(heads.dim) +
                " must be a multiple of 16, at most 128, for IncreFlashAttention");
  }
  return node.status();
}

void SetAttributes(pagedom::Subgraph* sub, ge::Operator* attention) {
  attention->SetAttr("scale_value", sub->Float("scale"));
  attention->SetAttr("input_layout", "BSH");  // with pages and grouped heads: BSH or BSND
  attention->SetAttr("inner_precise", static_cast<int64_t>(1));
}

domi::Status Expand(const ge::Operator& op, ge::Graph& graph) {
  pagedom::Subgraph sub(op, kOrigin);
  const int64_t heads = sub.Int("num_heads");
  const int64_t head_dim = sub.Int("head_dim");
  const ge::Operator query = sub.Input("query");
  const ge::Operator key_cache = sub.Input("key_cache");
  const ge::Operator value_cache = sub.Input("value_cache");
  const ge::Operator tables = sub.Input("token_tables");
  const ge::Operator lens = sub.Input("token_lens");
  const ge::Operator rows = sub.Reshape("query_rows", query, 0, {-1, 1, heads * head_dim});
  ge::Operator attention =
      pagedom::MakeAttention(&sub, "IncreFlashAttention", rows, key_cache, value_cache);
  if (!attention.IsEmpty()) {
    attention.SetInput("actual_seq_lengths", lens).SetInput("block_table", tables);
    SetAttributes(&sub, &attention);
  }
  const ge::Operator out = sub.Reshape("heads", attention, 0, {-1, heads, head_dim});
  return sub.Finish({{out, 0}}, &graph);
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
