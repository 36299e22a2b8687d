// Descriptors of cuDNN's backend API, and convolutions as operation graphs.
#ifndef TF_INTEROP_CORE_CUDNN_GRAPH_H_
#define TF_INTEROP_CORE_CUDNN_GRAPH_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cc_kernels/core/convolution.h"
#include "cc_kernels/core/cudnn/libraries.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

// The attribute type that cuDNN expects for a C++ type. cuDNN checks the type and the count of
// every attribute; both follow from the value, so they cannot disagree with it.
template <typename T>
struct AttributeType;

#define TF_INTEROP_ATTRIBUTE_TYPE(type, attribute_type)                  \
  template <>                                                            \
  struct AttributeType<type> {                                           \
    static constexpr cudnnBackendAttributeType_t value = attribute_type; \
  }
TF_INTEROP_ATTRIBUTE_TYPE(int64_t, CUDNN_TYPE_INT64);
TF_INTEROP_ATTRIBUTE_TYPE(bool, CUDNN_TYPE_BOOLEAN);
TF_INTEROP_ATTRIBUTE_TYPE(float, CUDNN_TYPE_FLOAT);
TF_INTEROP_ATTRIBUTE_TYPE(double, CUDNN_TYPE_DOUBLE);
TF_INTEROP_ATTRIBUTE_TYPE(void*, CUDNN_TYPE_VOID_PTR);
TF_INTEROP_ATTRIBUTE_TYPE(cudnnHandle_t, CUDNN_TYPE_HANDLE);
TF_INTEROP_ATTRIBUTE_TYPE(cudnnDataType_t, CUDNN_TYPE_DATA_TYPE);
TF_INTEROP_ATTRIBUTE_TYPE(cudnnConvolutionMode_t, CUDNN_TYPE_CONVOLUTION_MODE);
TF_INTEROP_ATTRIBUTE_TYPE(cudnnBackendHeurMode_t, CUDNN_TYPE_HEUR_MODE);
TF_INTEROP_ATTRIBUTE_TYPE(cudnnBackendKnobType_t, CUDNN_TYPE_KNOB_TYPE);
TF_INTEROP_ATTRIBUTE_TYPE(cudnnNanPropagation_t, CUDNN_TYPE_NAN_PROPOGATION);
TF_INTEROP_ATTRIBUTE_TYPE(cudnnPointwiseMode_t, CUDNN_TYPE_POINTWISE_MODE);
TF_INTEROP_ATTRIBUTE_TYPE(cudnnBackendNumericalNote_t, CUDNN_TYPE_NUMERICAL_NOTE);
#undef TF_INTEROP_ATTRIBUTE_TYPE

// Move-only. The first failure sticks: later calls only return it, and a descriptor with a failed
// one as an attribute fails too. So only the last descriptor needs checking.
class BackendDescriptor {
 public:
  BackendDescriptor() = default;
  // Messages call the descriptor `name`.
  BackendDescriptor(const CudnnLibrary& library, cudnnBackendDescriptorType_t type,
                    const char* name)
      : library_(&library), name_(name) {
    cudnnBackendDescriptor_t created = nullptr;
    status_ =
        Check(library.cudnnBackendCreateDescriptor(type, &created), "BackendCreateDescriptor");
    if (status_.ok()) descriptor_ = {created, library.cudnnBackendDestroyDescriptor};
  }

  cudnnBackendDescriptor_t get() const { return descriptor_.get(); }
  const Status& status() const { return status_; }

  template <typename T>
  void Set(cudnnBackendAttributeName_t name, const T& value) {
    SetRaw(name, AttributeType<T>::value, 1, &value);
  }
  template <typename T>
  void Set(cudnnBackendAttributeName_t name, const T* values, size_t count) {
    SetRaw(name, AttributeType<T>::value, count, values);
  }
  template <typename T>
  void Set(cudnnBackendAttributeName_t name, const std::vector<T>& values) {
    Set(name, values.data(), values.size());
  }
  void Set(cudnnBackendAttributeName_t name, const BackendDescriptor& value) {
    status_.Update(value.status());
    const cudnnBackendDescriptor_t descriptor = value.get();
    SetRaw(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &descriptor);
  }
  void Set(cudnnBackendAttributeName_t name, const std::vector<BackendDescriptor>& values) {
    std::vector<cudnnBackendDescriptor_t> descriptors;
    for (const BackendDescriptor& value : values) {
      status_.Update(value.status());
      descriptors.push_back(value.get());
    }
    SetRaw(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, descriptors.size(), descriptors.data());
  }

  void Finalize() {
    if (!status_.ok()) return;
    const cudnnStatus_t finalized = library_->cudnnBackendFinalize(get());
    status_ = Check(finalized, "BackendFinalize");
    // Nothing has been executed: the driver failed to load code that cuDNN compiled. cuDNN 9.28
    // returns CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER if memory is short.
    if (CUDNN_STATUS_CATEGORY(static_cast<int>(finalized)) == CUDNN_STATUS_EXECUTION_FAILED) {
      status_ = ResourceExhausted(status_.message());
    }
  }

  template <typename T>
  Status Get(cudnnBackendAttributeName_t name, T* value) const {
    int64_t count = 0;
    TF_INTEROP_RETURN_IF_ERROR(GetRaw(name, AttributeType<T>::value, 1, &count, value));
    if (count == 1) return Status::Ok();
    return Internal(std::string("Expected one value of an attribute of a cuDNN ") + name_ +
                    ", got " + std::to_string(count) + ".");
  }

  // Reads at most `room` values. For some attributes cuDNN does not tell their number in advance.
  template <typename T>
  Status Get(cudnnBackendAttributeName_t name, int64_t room, std::vector<T>* values) const {
    int64_t count = 0;
    values->resize(room);
    TF_INTEROP_RETURN_IF_ERROR(GetRaw(name, AttributeType<T>::value, room, &count, values->data()));
    values->resize(std::min(room, count));
    return Status::Ok();
  }

  // Reads one descriptor of this type. A failure is in its status.
  BackendDescriptor GetDescriptor(cudnnBackendAttributeName_t name,
                                  cudnnBackendDescriptorType_t type, const char* called) const {
    BackendDescriptor value(*library_, type, called);
    if (!value.status().ok()) return value;
    int64_t count = 0;
    cudnnBackendDescriptor_t descriptor = value.get();
    value.status_ = GetRaw(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &descriptor);
    return value;
  }

  // Reads at most `room` descriptors of this type.
  Status GetDescriptors(cudnnBackendAttributeName_t name, cudnnBackendDescriptorType_t type,
                        const char* called, int64_t room,
                        std::vector<BackendDescriptor>* values) const {
    values->clear();
    std::vector<cudnnBackendDescriptor_t> descriptors;
    for (int64_t i = 0; i < room; ++i) {
      values->emplace_back(*library_, type, called);
      TF_INTEROP_RETURN_IF_ERROR(values->back().status());
      descriptors.push_back(values->back().get());
    }
    int64_t count = 0;
    TF_INTEROP_RETURN_IF_ERROR(
        GetRaw(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, room, &count, descriptors.data()));
    values->resize(std::min(room, count));
    return Status::Ok();
  }

  Status CountDescriptors(cudnnBackendAttributeName_t name, int64_t* count) const {
    return GetRaw(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, count, nullptr);
  }

 private:
  void SetRaw(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, size_t count,
              const void* values) {
    if (!status_.ok()) return;
    status_ = Check(
        library_->cudnnBackendSetAttribute(get(), name, type, static_cast<int64_t>(count), values),
        "BackendSetAttribute", name);
  }

  // Reads at most `asked` values. Sets `count` to the number that exist.
  Status GetRaw(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t asked,
                int64_t* count, void* values) const {
    TF_INTEROP_RETURN_IF_ERROR(status_);
    return Check(library_->cudnnBackendGetAttribute(get(), name, type, asked, count, values),
                 "BackendGetAttribute", name);
  }

  Status Check(cudnnStatus_t status, const char* call, int attribute = -1) const {
    if (status == CUDNN_STATUS_SUCCESS) return Status::Ok();
    std::string text = std::string("cudnn") + call + " of " + name_;
    if (attribute >= 0) text += ", attribute " + std::to_string(attribute) + ",";
    return library_->Check(status, text);
  }

  const CudnnLibrary* library_ = nullptr;
  const char* name_ = "descriptor";
  std::unique_ptr<void, cudnnStatus_t (*)(cudnnBackendDescriptor_t)> descriptor_{nullptr, nullptr};
  Status status_;
};

// The ids of a graph's tensors, by which an execution binds memory to them.
enum TensorId : int64_t {
  kImageTensor = 1,
  kFilterTensor,
  kOutputTensor,
  kBiasTensor,
  kConvolvedTensor,  // the convolution's result before bias and activation
  kBoundTensors,     // from here on, tensors inside a graph, which have no memory
  kBiasedTensor = kBoundTensors,
};

// Every pointer bound to a tensor is a multiple of this. TensorFlow's allocator aligns to 64 or
// more.
constexpr int64_t kTensorAlignment = 16;

// A finalized operation graph and its descriptors. Immutable.
struct OperationGraph {
  const CudnnLibrary* library = nullptr;
  cudnnHandle_t handle = nullptr;                // must stay alive as long as plans of the graph
  std::map<int64_t, BackendDescriptor> tensors;  // by id
  std::vector<BackendDescriptor> operators;      // of the operations, in the same order
  std::vector<BackendDescriptor> operations;     // in order of execution
  BackendDescriptor graph;                       // with the status of the whole
};

// The convolution, fused with its bias and activation if it has them. The filter has the layout of
// FilterGeometry. Sums and activations are computed in float, or in double for doubles.
OperationGraph BuildConvolutionGraph(const CudnnLibrary& library, cudnnHandle_t handle,
                                     const Convolution& convolution);

// Only the bias and the activation: output = activation(convolved + bias).
OperationGraph BuildEpilogueGraph(const CudnnLibrary& library, cudnnHandle_t handle,
                                  const Convolution& convolution);

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_CUDNN_GRAPH_H_
