// The attributes of cuDNN's descriptors, as far as its documentation says what they take.
#ifndef TF_INTEROP_TESTS_CC_FAKE_CUDNN_ATTRIBUTES_H_
#define TF_INTEROP_TESTS_CC_FAKE_CUDNN_ATTRIBUTES_H_

#include <cudnn.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace tf_interop::fake_cudnn {

// What the documentation says of an attribute.
struct Rule {
  cudnnBackendDescriptorType_t owner;
  std::vector<cudnnBackendAttributeType_t> types;
  int64_t fewest, most;
  bool is_required;
};

// By attribute.
const std::map<int, Rule>& Rules();

// Bytes of one value.
size_t BytesOf(cudnnBackendAttributeType_t type);

}  // namespace tf_interop::fake_cudnn

#endif  // TF_INTEROP_TESTS_CC_FAKE_CUDNN_ATTRIBUTES_H_
