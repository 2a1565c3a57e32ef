// C functions through which a test drives the plugin as the ONNX parser would, and reads as JSON
// what it made. Each returned text is valid until the next call.
#include <cstdio>
#include <map>
#include <set>
#include <string>

#include "graph/operator_factory.h"
#include "json.h"
#include "register/register.h"

namespace {

using ge::test::Node;

std::string g_text;
std::vector<ge::Tensor> g_tensors;

std::string Quote(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
    }
    out += c;
  }
  return out + "\"";
}

std::string Number(float value) {
  char text[64];
  (void)std::snprintf(text, sizeof(text), "%.9g", static_cast<double>(value));
  return text;
}

std::string AttrJson(const ge::test::Attr& attr) {
  if (attr.type == 'i') {
    return std::to_string(attr.i);
  }
  if (attr.type == 'f') {
    return "{\"float\":" + Number(attr.f) + "}";
  }
  if (attr.type == 's') {
    return Quote(attr.s);
  }
  std::string dims;
  for (const int64_t dim : attr.t.desc().shape().dims()) {
    dims += (dims.empty() ? "" : ",") + std::to_string(dim);
  }
  g_tensors.push_back(attr.t);
  return "{\"tensor\":" + std::to_string(g_tensors.size() - 1) +
         ",\"dtype\":" + std::to_string(attr.t.desc().dtype()) + ",\"shape\":[" + dims + "]}";
}

std::string NodeJson(const Node& node) {
  std::string inputs;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const auto link = node.links.find(node.inputs[i]);
    inputs += i == 0 ? "[" : ",[";
    inputs += Quote(node.inputs[i]);
    if (link != node.links.end()) {
      inputs += "," + Quote(link->second.first->name) + "," + std::to_string(link->second.second);
    }
    inputs += "]";
  }
  std::string attrs;
  for (const auto& attr : node.attrs) {
    attrs += (attrs.empty() ? "" : ",") + Quote(attr.first) + ":" + AttrJson(attr.second);
  }
  return "{\"name\":" + Quote(node.name) + ",\"type\":" + Quote(node.type) + ",\"inputs\":[" +
         inputs + "],\"attrs\":{" + attrs + "}}";
}

void Collect(const std::shared_ptr<Node>& node, std::set<Node*>* seen, std::string* out) {
  if (node == nullptr || !seen->insert(node.get()).second) {
    return;
  }
  for (const auto& link : node->links) {
    Collect(link.second.first, seen, out);
  }
  *out += (out->empty() ? "" : ",") + NodeJson(*node);
}

std::string GraphJson(const ge::Graph& graph) {
  std::string inputs;
  std::string nodes;
  std::string outputs;
  std::set<Node*> seen;
  for (const ge::Operator& input : graph.inputs()) {
    inputs += (inputs.empty() ? "" : ",") + Quote(input.node()->name);
    Collect(input.node(), &seen, &nodes);
  }
  for (const auto& output : graph.outputs()) {
    Collect(output.first.node(), &seen, &nodes);
    for (const size_t index : output.second) {
      outputs += (outputs.empty() ? "[" : ",[") + Quote(output.first.node()->name) + "," +
                 std::to_string(index) + "]";
    }
  }
  return "{\"inputs\":[" + inputs + "],\"nodes\":[" + nodes + "],\"outputs\":[" + outputs + "]}";
}

std::string ProblemsJson() {
  std::string out;
  for (const std::string& problem : ge::test::Problems()) {
    out += (out.empty() ? "" : ",") + Quote(problem);
  }
  return "[" + out + "]";
}

const domi::OpRegistrationData* Registered(const std::string& origin) {
  for (const auto& data : domi::test::Registry()) {
    if (data.origin_type == origin) {
      return &data;
    }
  }
  return nullptr;
}

ge::Operator Target(const domi::OpRegistrationData& data, const char* name) {
  if (data.om_type == "PartitionedCall") {
    return ge::Operator(name, "PartitionedCall");
  }
  return ge::OperatorFactory::CreateOperator(name, data.om_type.c_str());
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

const char* pagedom_test_registrations() {
  g_text.clear();
  for (const auto& data : domi::test::Registry()) {
    g_text += (g_text.empty() ? "" : ",");
    g_text += "{\"ge\":" + Quote(data.om_type) + ",\"origin\":" + Quote(data.origin_type) +
              ",\"framework\":" + std::to_string(data.framework) +
              ",\"imply\":" + std::to_string(static_cast<unsigned int>(data.imply)) +
              ",\"expands\":" + (data.expand ? "true" : "false") + "}";
  }
  g_text = "[" + g_text + "]";
  return g_text.c_str();
}

void pagedom_test_without(const char* type) { ge::test::MissingType() = type; }

// Parses one node and, where it stands for a subgraph, expands it. `attribute` is the parser's
// attribute text, or null for a node without attributes.
const char* pagedom_test_parse(const char* origin, const char* name, const char* attribute) {
  ge::test::Problems().clear();
  g_tensors.clear();
  const domi::OpRegistrationData* data = Registered(origin);
  if (data == nullptr) {
    return "{\"error\":\"not registered\"}";
  }
  ge::Operator source(name, origin);
  if (attribute != nullptr) {
    source.SetAttr("attribute", attribute);
  }
  ge::Operator target = Target(*data, name);
  const bool parsed = data->parse(source, target) == domi::SUCCESS;
  std::string graph = "null";
  bool expanded = false;
  if (parsed && data->expand) {
    ge::Graph made("one_to_many_graph");
    expanded = data->expand(target, made) == domi::SUCCESS;
    graph = expanded ? GraphJson(made) : "null";
  }
  g_text = std::string("{\"parsed\":") + (parsed ? "true" : "false") +
           ",\"expanded\":" + (expanded ? "true" : "false") +
           ",\"node\":" + NodeJson(*target.node()) + ",\"outputs\":" +
           std::to_string(target.node()->outputs.size()) + ",\"graph\":" + graph +
           ",\"problems\":" + ProblemsJson() + "}";
  return g_text.c_str();
}

const unsigned char* pagedom_test_tensor(int index, size_t* size) {
  const auto& data = g_tensors[static_cast<size_t>(index)].data();
  *size = data.size();
  return data.data();
}

// The strict reader alone: the error text, or an empty one.
const char* pagedom_test_json(const char* text) {
  pagedom::JsonValue value;
  g_text.clear();
  (void)pagedom::ParseJson(text, &value, &g_text);
  return g_text.c_str();
}

}  // extern "C"
#pragma GCC visibility pop
