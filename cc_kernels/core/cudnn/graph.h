// Descriptors of cuDNN's backend API, and the operation graphs of convolutions made of them.
#ifndef TF_INTEROP_CORE_CUDNN_GRAPH_H_
#define TF_INTEROP_CORE_CUDNN_GRAPH_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cc_kernels/core/convolution.h"
#include "cc_kernels/core/cudnn/libraries.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

// The attribute type that cuDNN expects for a C++ type. cuDNN checks type and count of every
// attribute; deriving both from the value leaves no room for a mismatch.
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

// Move-only. Set calls record the first failure, which Finalize returns.
class BackendDescriptor {
 public:
  BackendDescriptor() = default;
  // `name` is what messages call the descriptor.
  BackendDescriptor(const CudnnLibrary& library, cudnnBackendDescriptorType_t type,
                    const char* name)
      : library_(&library), name_(name) {
    status_ =
        Check(library.cudnnBackendCreateDescriptor(type, &descriptor_), "BackendCreateDescriptor");
    if (!status_.ok()) descriptor_ = nullptr;
  }
  ~BackendDescriptor() { Reset(); }
  BackendDescriptor(BackendDescriptor&& other) noexcept { *this = std::move(other); }
  BackendDescriptor& operator=(BackendDescriptor&& other) noexcept {
    if (this == &other) return *this;
    Reset();
    library_ = other.library_;
    name_ = other.name_;
    descriptor_ = std::exchange(other.descriptor_, nullptr);
    status_ = std::move(other.status_);
    return *this;
  }

  cudnnBackendDescriptor_t get() const { return descriptor_; }
  const Status& status() const { return status_; }

  template <typename T>
  void Set(cudnnBackendAttributeName_t name, const T& value) {
    SetRaw(name, AttributeType<T>::value, 1, &value);
  }

  // For a vector<T> or an array.
  template <typename Array>
  void SetArray(cudnnBackendAttributeName_t name, const Array& values) {
    SetRaw(name, AttributeType<typename Array::value_type>::value,
           static_cast<int64_t>(values.size()), values.data());
  }

  void SetDescriptor(cudnnBackendAttributeName_t name, const BackendDescriptor& value) {
    const cudnnBackendDescriptor_t descriptor = value.get();
    SetRaw(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &descriptor);
  }

  void SetDescriptors(cudnnBackendAttributeName_t name,
                      const std::vector<BackendDescriptor>& values) {
    const std::vector<cudnnBackendDescriptor_t> descriptors = Raw(values);
    SetRaw(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, static_cast<int64_t>(descriptors.size()),
           descriptors.data());
  }

  Status Finalize() {
    TF_INTEROP_RETURN_IF_ERROR(status_);
    const cudnnStatus_t finalized = library_->cudnnBackendFinalize(descriptor_);
    status_ = Check(finalized, "BackendFinalize");
    // Nothing is executed here: the driver failed to load what cuDNN has compiled. Without memory
    // for it cuDNN 9.28 says CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER.
    if (CUDNN_STATUS_CATEGORY(static_cast<int>(finalized)) == CUDNN_STATUS_EXECUTION_FAILED) {
      status_ = ResourceExhausted(status_.message());
    }
    return status_;
  }

  template <typename T>
  Status Get(cudnnBackendAttributeName_t name, T* value) const {
    int64_t count = 0;
    TF_INTEROP_RETURN_IF_ERROR(GetRaw(name, AttributeType<T>::value, 1, &count, value));
    if (count == 1) return Status::Ok();
    return Internal(std::string("Expected one value of an attribute of a cuDNN ") + name_ +
                    ", got " + std::to_string(count) + ".");
  }

  // Fills `values`, at most its size, and shrinks it to what there is.
  template <typename T>
  Status GetArray(cudnnBackendAttributeName_t name, std::vector<T>* values) const {
    int64_t count = 0;
    TF_INTEROP_RETURN_IF_ERROR(GetRaw(name, AttributeType<T>::value,
                                      static_cast<int64_t>(values->size()), &count,
                                      values->data()));
    if (count < static_cast<int64_t>(values->size())) values->resize(count);
    return Status::Ok();
  }

  // As GetArray. cuDNN fills descriptors that the caller has created, and not finalized.
  Status GetDescriptors(cudnnBackendAttributeName_t name,
                        std::vector<BackendDescriptor>* values) const {
    for (const BackendDescriptor& value : *values) TF_INTEROP_RETURN_IF_ERROR(value.status());
    std::vector<cudnnBackendDescriptor_t> descriptors = Raw(*values);
    int64_t count = 0;
    TF_INTEROP_RETURN_IF_ERROR(GetRaw(name, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                      static_cast<int64_t>(descriptors.size()), &count,
                                      descriptors.data()));
    if (count < static_cast<int64_t>(values->size())) values->resize(count);
    return Status::Ok();
  }

  Status GetDescriptor(cudnnBackendAttributeName_t name, BackendDescriptor* value) const {
    TF_INTEROP_RETURN_IF_ERROR(value->status());
    cudnnBackendDescriptor_t descriptor = value->get();
    int64_t count = 0;
    return GetRaw(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &descriptor);
  }

  // How many values an attribute has.
  Status CountDescriptors(cudnnBackendAttributeName_t name, int64_t* count) const {
    return GetRaw(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, count, nullptr);
  }

 private:
  static std::vector<cudnnBackendDescriptor_t> Raw(const std::vector<BackendDescriptor>& values) {
    std::vector<cudnnBackendDescriptor_t> descriptors;
    for (const BackendDescriptor& value : values) descriptors.push_back(value.get());
    return descriptors;
  }

  void SetRaw(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
              const void* values) {
    if (!status_.ok()) return;
    status_ = Check(library_->cudnnBackendSetAttribute(descriptor_, name, type, count, values),
                    "BackendSetAttribute", name);
  }

  Status GetRaw(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t asked,
                int64_t* count, void* values) const {
    TF_INTEROP_RETURN_IF_ERROR(status_);
    return Check(library_->cudnnBackendGetAttribute(descriptor_, name, type, asked, count, values),
                 "BackendGetAttribute", name);
  }

  Status Check(cudnnStatus_t status, const char* call, int attribute = -1) const {
    if (status == CUDNN_STATUS_SUCCESS) return Status::Ok();
    std::string text = std::string("cudnn") + call + " of " + name_;
    if (attribute >= 0) text += ", attribute " + std::to_string(attribute) + ",";
    return library_->Check(status, text);
  }

  void Reset() {
    // A failure to free is nothing that a caller could act on.
    if (descriptor_ != nullptr) (void)library_->cudnnBackendDestroyDescriptor(descriptor_);
    descriptor_ = nullptr;
  }

  const CudnnLibrary* library_ = nullptr;
  const char* name_ = "descriptor";
  cudnnBackendDescriptor_t descriptor_ = nullptr;
  Status status_;
};

// The tensors of a graph that have memory; the ids under which a variant pack binds them.
enum TensorId : int64_t {
  kImageTensor = 1,
  kFilterTensor = 2,
  kOutputTensor = 3,
  kBiasTensor = 4,
  kConvolvedTensor = 5,  // the convolution's result before bias and activation
};

// Every pointer bound to a tensor is a multiple of this. TensorFlow's allocator gives 64 or more.
constexpr int64_t kTensorAlignment = 16;

// A finalized operation graph, with the descriptors it was made of. Immutable.
struct OperationGraph {
  std::map<int64_t, BackendDescriptor> tensors;  // by id
  std::vector<BackendDescriptor> operators;      // what the operations apply
  std::vector<BackendDescriptor> operations;     // in order of execution
  BackendDescriptor graph;
};

// The convolution, with bias and activation fused where it has them. The layout of the filter is
// that of FilterGeometry. Sums and activations are computed in float, or in double of double.
Status BuildConvolutionGraph(const CudnnLibrary& library, cudnnHandle_t handle,
                             const Convolution& convolution, OperationGraph* graph);

// Bias and activation of a forward convolution alone: output = activation(convolved + bias).
Status BuildEpilogueGraph(const CudnnLibrary& library, cudnnHandle_t handle,
                          const Convolution& convolution, OperationGraph* graph);

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_CUDNN_GRAPH_H_
