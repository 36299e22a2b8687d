// Hands graphs to the Python pass, and waits for it.
#ifndef TF_INTEROP_PLUGIN_GRAPH_PASS_H_
#define TF_INTEROP_PLUGIN_GRAPH_PASS_H_

#include <cstdint>
#include <memory>

#include "absl/strings/string_view.h"
#include "tensorflow/c/c_api.h"
#include "tensorflow/c/experimental/grappler/grappler.h"

namespace tf_interop {

constexpr char kCpu[] = "CPU", kGpu[] = "GPU";

using OwnedBuffer = std::unique_ptr<TF_Buffer, decltype(&TF_DeleteBuffer)>;

bool HasPass();

// Grows when the pass is set or turned off.
int64_t PassVersion();

// Whether a graph's bytes may name a convolution op (Conv2D…, DepthwiseConv2d…, Conv3D…). Most of
// TensorFlow's many helper graphs do not, and are skipped without being parsed.
bool MayHoldConvolution(absl::string_view graph);

// Whether the pass that is set takes a graph of Grappler's, from the graph's bytes.
bool IsForPass(absl::string_view graph);

// A graph for the pass.
struct Handed {
  absl::string_view graph;  // a serialized GraphDef
  const char* device_type = kCpu;
  bool is_compiled = false;  // the body of a function that XLA compiles
  const TF_GrapplerItem* item = nullptr;
};

// Runs the pass, which must be on, for a graph. Returns the new graph; null if it stays as it is,
// because nothing is to be done, or the pass failed or did not end in time.
OwnedBuffer RunGraphPass(const Handed& handed, TF_Status* status);

}  // namespace tf_interop

#endif  // TF_INTEROP_PLUGIN_GRAPH_PASS_H_
