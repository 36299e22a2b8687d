// The entry points must be visible, whatever the build's default.
#pragma GCC visibility push(default)

#include "tests/cc/fake_cudnn.h"

#include <cudnn.h>
#include <dlfcn.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "tests/cc/fake_cuda.h"
#include "tests/cc/fake_cudnn_compute.h"

struct cudnnContext {
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  std::atomic<bool> in_use{false};
};

namespace tf_interop {
namespace {

// From cuDNN 9.8 on; TensorFlow's headers are older.
constexpr auto kDeviceProperty = static_cast<cudnnBackendDescriptorType_t>(38);
constexpr auto kPropertyJson = static_cast<cudnnBackendAttributeName_t>(2702);
constexpr auto kPropertyOfHeuristic = static_cast<cudnnBackendAttributeName_t>(204);
constexpr auto kPropertyOfPlan = static_cast<cudnnBackendAttributeName_t>(407);
constexpr auto kPropertyOfEngine = static_cast<cudnnBackendAttributeName_t>(1307);

thread_local std::string last_error;

// Null if there is none.
void* RealLibrary() {
  static void* const library = [] {
    const char* const named = std::getenv("TF_INTEROP_REAL_CUDNN");
    return dlopen(named == nullptr ? REAL_CUDNN : named, RTLD_NOW | RTLD_LOCAL);
  }();
  return library;
}

// Calls the real function.
#define TF_INTEROP_REAL(name, ...)                                                             \
  [&] {                                                                                        \
    static const auto real = reinterpret_cast<decltype(&::name)>(dlsym(RealLibrary(), #name)); \
    return real(__VA_ARGS__);                                                                  \
  }()

// An entry point that only calls the real one.
#define TF_INTEROP_FORWARD(name, parameters, ...) \
  cudnnStatus_t CUDNNWINAPI name parameters { return TF_INTEROP_REAL(name, __VA_ARGS__); }

#define RETURN_IF_FAILED(call)                                         \
  do {                                                                 \
    const cudnnStatus_t status_of_call = call;                         \
    if (status_of_call != CUDNN_STATUS_SUCCESS) return status_of_call; \
  } while (false)

// Sets this thread's last error text.
cudnnStatus_t Fail(cudnnStatus_t status, const std::string& why) {
  last_error = why;
  return status;
}

// Detects a second thread inside the same object.
class UseGuard {
 public:
  explicit UseGuard(std::atomic<bool>* in_use) : in_use_(in_use) {
    if (in_use_->exchange(true)) ++FakeCudnnCounts().races;
  }
  ~UseGuard() { in_use_->store(false); }

 private:
  std::atomic<bool>* in_use_;
};

cudnnStatus_t CheckHandle(const cudnnContext& handle) {
  if (FakeCudaCurrentContext() != handle.context) {
    return Fail(CUDNN_STATUS_BAD_PARAM, "another context is current");
  }
  return CUDNN_STATUS_SUCCESS;
}

// Sets an attribute to the properties of FakeCudnn().device.
cudnnStatus_t SetProperty(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name) {
  static auto* const mutex = new std::mutex();
  static auto* const properties = new std::map<std::string, cudnnBackendDescriptor_t>();
  std::lock_guard<std::mutex> lock(*mutex);
  cudnnBackendDescriptor_t& made = (*properties)[FakeCudnn().device];
  if (made == nullptr) {
    std::stringstream json;
    json << std::ifstream(std::string(DEVICES) + "/" + FakeCudnn().device + ".json").rdbuf();
    const std::string text = json.str();
    TF_INTEROP_REAL(cudnnBackendCreateDescriptor, kDeviceProperty, &made);
    TF_INTEROP_REAL(cudnnBackendSetAttribute, made, kPropertyJson, CUDNN_TYPE_CHAR,
                    static_cast<int64_t>(text.size()), text.data());
    RETURN_IF_FAILED(TF_INTEROP_REAL(cudnnBackendFinalize, made));
  }
  return TF_INTEROP_REAL(cudnnBackendSetAttribute, descriptor, name, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                         1, &made);
}

// The records of all descriptors.
class Records {
 public:
  void Add(cudnnBackendDescriptor_t descriptor, cudnnBackendDescriptorType_t type) {
    std::lock_guard<std::mutex> lock(mutex_);
    all_[descriptor] = std::make_shared<Recorded>(type);
  }
  void Remove(cudnnBackendDescriptor_t descriptor) {
    std::lock_guard<std::mutex> lock(mutex_);
    all_.erase(descriptor);
  }
  RecordedPtr Find(cudnnBackendDescriptor_t descriptor) {
    std::lock_guard<std::mutex> lock(mutex_);
    return all_.at(descriptor);
  }

 private:
  std::mutex mutex_;
  std::unordered_map<cudnnBackendDescriptor_t, RecordedPtr> all_;
};

Records& AllRecords() {
  static auto* const records = new Records();
  return *records;
}

size_t BytesOf(cudnnBackendAttributeType_t type) {
  if (type == CUDNN_TYPE_BOOLEAN) return 1;
  const bool is_long = type == CUDNN_TYPE_INT64 || type == CUDNN_TYPE_DOUBLE ||
                       type == CUDNN_TYPE_VOID_PTR || type == CUDNN_TYPE_HANDLE;
  return is_long ? 8 : 4;
}

void Record(Recorded* record, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
            int64_t count, const void* values) {
  if (type != CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    const auto* bytes = static_cast<const char*>(values);
    record->values[name].assign(bytes, bytes + count * BytesOf(type));
    return;
  }
  std::vector<RecordedPtr>& parts = record->parts[name];
  parts.clear();
  for (int64_t i = 0; i < count; ++i) {
    parts.push_back(AllRecords().Find(static_cast<const cudnnBackendDescriptor_t*>(values)[i]));
    const RecordedPtr& part = parts.back();
    const bool is_graph = part->type == CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR;
    if (is_graph || part->graph != nullptr) record->graph = is_graph ? part : part->graph;
  }
}

// The index of a plan's engine in its graph.
int64_t EngineOf(cudnnBackendDescriptor_t config) {
  cudnnBackendDescriptor_t engine = nullptr;
  int64_t index = -1, count = 0;
  TF_INTEROP_REAL(cudnnBackendCreateDescriptor, CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine);
  TF_INTEROP_REAL(cudnnBackendGetAttribute, config, CUDNN_ATTR_ENGINECFG_ENGINE,
                  CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &engine);
  TF_INTEROP_REAL(cudnnBackendGetAttribute, engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX,
                  CUDNN_TYPE_INT64, 1, &count, &index);
  TF_INTEROP_REAL(cudnnBackendDestroyDescriptor, engine);
  return index;
}

constexpr int kEngineOfPlan = -1;  // the engine's attribute in a plan's record

cudnnStatus_t FinalizePlan(cudnnBackendDescriptor_t plan, const Recorded& record) {
  auto* const handle = record.One<cudnnHandle_t>(CUDNN_ATTR_EXECUTION_PLAN_HANDLE);
  const UseGuard guard(&handle->in_use);
  RETURN_IF_FAILED(CheckHandle(*handle));
  ++FakeCudnnCounts().plans_finalized;
  std::this_thread::sleep_for(std::chrono::microseconds(FakeCudnn().plan_delay_us));
  if (FakeCudnn().fail_plan_allocation || FakeCudaSpoilsCapture()) {
    return Fail(CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED, "no memory for the plan");
  }
  if (FakeCudnn().unsupported_engines.count(record.One<int64_t>(kEngineOfPlan)) != 0) {
    return Fail(CUDNN_STATUS_NOT_SUPPORTED, "engine switched off");
  }
  return TF_INTEROP_REAL(cudnnBackendFinalize, plan);
}

// ---- The legacy API.

TensorForm ReadForm(cudnnTensorDescriptor_t descriptor, int* rank) {
  cudnnDataType_t type;
  std::vector<int> extents(CUDNN_DIM_MAX), strides(CUDNN_DIM_MAX);
  TF_INTEROP_REAL(cudnnGetTensorNdDescriptor, descriptor, CUDNN_DIM_MAX, &type, rank,
                  extents.data(), strides.data());
  extents.resize(*rank);
  strides.resize(*rank);
  return {DataTypeOf(type), ToFive(extents, 1), ToFive(strides, 0)};
}

// Whether the factors are one and zero: doubles for tensors of doubles, else floats.
bool IsUnscaled(DataType dtype, const void* alpha, const void* beta) {
  if (dtype == DataType::kDouble) {
    return *static_cast<const double*>(alpha) == 1 && *static_cast<const double*>(beta) == 0;
  }
  return *static_cast<const float*>(alpha) == 1 && *static_cast<const float*>(beta) == 0;
}

// The names again, in cuDNN's order, so that a wrong enumerator is detected.
const char* NameOf(ConvolutionKind kind, int algorithm) {
  static const char* const names[][8] = {
      {"IMPLICIT_GEMM", "IMPLICIT_PRECOMP_GEMM", "GEMM", "DIRECT", "FFT", "FFT_TILING", "WINOGRAD",
       "WINOGRAD_NONFUSED"},
      {"ALGO_0", "ALGO_1", "FFT", "FFT_TILING", "WINOGRAD", "WINOGRAD_NONFUSED"},
      {"ALGO_0", "ALGO_1", "FFT", "ALGO_3", "WINOGRAD", "WINOGRAD_NONFUSED", "FFT_TILING"}};
  return names[static_cast<int>(kind)][algorithm];
}

// A call, with its real descriptors.
struct LegacyCall {
  cudnnHandle_t handle;
  cudnnTensorDescriptor_t x_descriptor, y_descriptor;
  cudnnFilterDescriptor_t w_descriptor;
  cudnnConvolutionDescriptor_t convolution;
  ConvolutionKind kind;
  std::string_view name;
  TensorForm x = {}, w = {}, y = {};
  Spacing spacing = {};

  size_t workspace_bytes() const { return name == "IMPLICIT_GEMM" || name == "ALGO_0" ? 0 : 2048; }

  // Reads the descriptors, and checks them as cuDNN does.
  cudnnStatus_t Check() {
    RETURN_IF_FAILED(CheckHandle(*handle));
    int x_rank = 0, y_rank = 0, w_rank = 0, spatial = 0;
    x = ReadForm(x_descriptor, &x_rank);
    y = ReadForm(y_descriptor, &y_rank);
    cudnnDataType_t type;
    cudnnTensorFormat_t format;
    std::vector<int> w_extents(CUDNN_DIM_MAX);
    TF_INTEROP_REAL(cudnnGetFilterNdDescriptor, w_descriptor, CUDNN_DIM_MAX, &type, &format,
                    &w_rank, w_extents.data());
    w_extents.resize(w_rank);
    w = {DataTypeOf(type), ToFive(w_extents, 1), {}};
    const auto& [k, c, d, r, s] = w.extents;
    w.strides = format == CUDNN_TENSOR_NHWC ? Five{d * r * s * c, 1, r * s * c, s * c, c}
                                            : Five{c * d * r * s, d * r * s, r * s, s, 1};
    std::vector<int> pads(3), strides(3), dilations(3), extents(x_rank);
    cudnnConvolutionMode_t mode;
    cudnnDataType_t sums;
    TF_INTEROP_REAL(cudnnGetConvolutionNdDescriptor, convolution, 3, &spatial, pads.data(),
                    strides.data(), dilations.data(), &mode, &sums);
    for (auto* values : {&pads, &strides, &dilations}) values->resize(spatial);
    spacing = {WithDepth(strides, 1), WithDepth(dilations, 1), WithDepth(pads, 0)};
    // The real function needs no GPU.
    RETURN_IF_FAILED(TF_INTEROP_REAL(cudnnGetConvolutionNdForwardOutputDim, convolution,
                                     x_descriptor, w_descriptor, x_rank, extents.data()));
    const bool is_nhwc = x.extents[1] > 1 && x.strides[1] == 1;
    const bool is_double = x.dtype == DataType::kDouble;
    if (ToFive(extents, 1) != y.extents || x_rank != w_rank || mode != CUDNN_CROSS_CORRELATION ||
        x.dtype != w.dtype || x.dtype != y.dtype ||
        (x.extents[1] > 1 && is_nhwc != (format == CUDNN_TENSOR_NHWC)) ||
        sums != (is_double ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT)) {
      return Fail(CUDNN_STATUS_BAD_PARAM, "tensors that do not fit");
    }
    if (FakeCudnn().unsupported_legacy.count(std::string(name)) != 0) {
      return Fail(CUDNN_STATUS_NOT_SUPPORTED, std::string(name) + " switched off");
    }
    if (is_nhwc && name.substr(0, 3) == "FFT") {
      return Fail(CUDNN_STATUS_NOT_SUPPORTED_LAYOUT, "FFT of NHWC");
    }
    cudnnMathType_t math;
    TF_INTEROP_REAL(cudnnGetConvolutionMathType, convolution, &math);
    FakeCudnnCounts().last_legacy_math_type = math;
    FakeCudnnCounts().last_legacy_name = name.data();
    return CUDNN_STATUS_SUCCESS;
  }

  cudnnStatus_t AskWorkspace(size_t* bytes) {
    const UseGuard guard(&handle->in_use);
    if (FakeCudnn().fail_plan_allocation) {
      return Fail(CUDNN_STATUS_ALLOC_FAILED, "no memory for the algorithm");
    }
    *bytes = workspace_bytes();
    return Check();
  }

  cudnnStatus_t Run(const void* x_data, const void* w_data, const void* y_data, void* workspace,
                    size_t bytes, const void* alpha, const void* beta) {
    const UseGuard handle_guard(&handle->in_use);
    RETURN_IF_FAILED(Check());
    if (FakeCudnn().fail_execution) {
      return Fail(CUDNN_STATUS_EXECUTION_FAILED, "execution switched off");
    }
    if (!IsUnscaled(x.dtype, alpha, beta) || bytes < workspace_bytes()) {
      return Fail(CUDNN_STATUS_BAD_PARAM, "scaled convolution, or too little workspace");
    }
    FakeCudaEnqueue(handle->stream, [call = *this, x_data, w_data, y_data, workspace, bytes] {
      if (bytes > 0) std::memset(workspace, 0xA5, bytes);
      TensorValues image = ReadTensor(call.x, x_data), filter = ReadTensor(call.w, w_data),
                   output = ReadTensor(call.y, y_data);
      ComputeConvolution(&image, &filter, &output, call.spacing, call.kind);
      if (bytes > 0) std::memset(workspace, 0x5A, bytes);
    });
    return CUDNN_STATUS_SUCCESS;
  }
};

}  // namespace

bool FakeCudnnIsThere() { return RealLibrary() != nullptr; }

FakeCudnnSwitches& FakeCudnn() {
  static auto* switches = [] {
    auto* made = new FakeCudnnSwitches();
    if (const char* device = std::getenv("TF_INTEROP_FAKE_CUDNN_DEVICE")) made->device = device;
    return made;
  }();
  return *switches;
}

FakeCudnnCounters& FakeCudnnCounts() {
  static auto* counters = new FakeCudnnCounters();
  return *counters;
}

}  // namespace tf_interop

using namespace tf_interop;  // NOLINT: the C interface of the functions above

extern "C" {

size_t CUDNNWINAPI cudnnGetVersion(void) { return TF_INTEROP_REAL(cudnnGetVersion); }

const char* CUDNNWINAPI cudnnGetErrorString(cudnnStatus_t status) {
  return TF_INTEROP_REAL(cudnnGetErrorString, status);
}

void CUDNNWINAPI cudnnGetLastErrorString(char* message, size_t max_size) {
  if (last_error.empty()) return TF_INTEROP_REAL(cudnnGetLastErrorString, message, max_size);
  std::snprintf(message, max_size, "%s", last_error.c_str());
  last_error.clear();
}

cudnnStatus_t CUDNNWINAPI cudnnCreate(cudnnHandle_t* handle) {
  ++FakeCudnnCounts().handles_asked;
  if (FakeCudaCurrentContext() == nullptr || FakeCudaSpoilsCapture() || FakeCudnn().fail_handle) {
    return Fail(CUDNN_STATUS_NOT_INITIALIZED, "no context");
  }
  *handle = new cudnnContext();
  (*handle)->context = FakeCudaCurrentContext();
  ++FakeCudnnCounts().handles_made;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t CUDNNWINAPI cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  const UseGuard guard(&handle->in_use);
  handle->stream = stream;
  return CheckHandle(*handle);
}

cudnnStatus_t CUDNNWINAPI cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                                       cudnnBackendDescriptor_t* descriptor) {
  RETURN_IF_FAILED(TF_INTEROP_REAL(cudnnBackendCreateDescriptor, type, descriptor));
  ++FakeCudnnCounts().live_descriptors;
  AllRecords().Add(*descriptor, type);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t CUDNNWINAPI cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  --FakeCudnnCounts().live_descriptors;
  if (FakeCudaCurrentContext() == nullptr) ++FakeCudnnCounts().destroyed_outside_contexts;
  AllRecords().Remove(descriptor);
  return TF_INTEROP_REAL(cudnnBackendDestroyDescriptor, descriptor);
}

cudnnStatus_t CUDNNWINAPI cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                                   cudnnBackendAttributeName_t name,
                                                   cudnnBackendAttributeType_t type, int64_t count,
                                                   const void* values) {
  const RecordedPtr record = AllRecords().Find(descriptor);
  // Only executions read the addresses of a variant pack.
  if (!FakeCudaComputesNothing() || record->type != CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR) {
    Record(record.get(), name, type, count, values);
  }
  if (name == CUDNN_ATTR_OPERATIONGRAPH_HANDLE) {
    return CheckHandle(**static_cast<const cudnnHandle_t*>(values));
  }
  if (name == CUDNN_ATTR_EXECUTION_PLAN_HANDLE) return SetProperty(descriptor, kPropertyOfPlan);
  if (name == CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG) {
    const int64_t engine = EngineOf(*static_cast<const cudnnBackendDescriptor_t*>(values));
    Record(record.get(), static_cast<cudnnBackendAttributeName_t>(kEngineOfPlan), CUDNN_TYPE_INT64,
           1, &engine);
  }
  return TF_INTEROP_REAL(cudnnBackendSetAttribute, descriptor, name, type, count, values);
}

cudnnStatus_t CUDNNWINAPI cudnnBackendGetAttribute(cudnnBackendDescriptor_t const descriptor,
                                                   cudnnBackendAttributeName_t name,
                                                   cudnnBackendAttributeType_t type, int64_t asked,
                                                   int64_t* count, void* values) {
  const RecordedPtr record = AllRecords().Find(descriptor);
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    for (int64_t i = 0; i < asked; ++i) {
      AllRecords().Find(static_cast<cudnnBackendDescriptor_t*>(values)[i])->graph = record->graph;
    }
  }
  const cudnnStatus_t status =
      TF_INTEROP_REAL(cudnnBackendGetAttribute, descriptor, name, type, asked, count, values);
  if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE && !FakeCudnn().knows_workspaces) {
    *static_cast<int64_t*>(values) = -1;
  }
  return status;
}

cudnnStatus_t CUDNNWINAPI cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  const RecordedPtr record = AllRecords().Find(descriptor);
  switch (record->type) {
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
      return FinalizePlan(descriptor, *record);
    case CUDNN_BACKEND_ENGINE_DESCRIPTOR:
      RETURN_IF_FAILED(SetProperty(descriptor, kPropertyOfEngine));
      break;
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
      RETURN_IF_FAILED(SetProperty(descriptor, kPropertyOfHeuristic));
      break;
    default:
      break;
  }
  return TF_INTEROP_REAL(cudnnBackendFinalize, descriptor);
}

cudnnStatus_t CUDNNWINAPI cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                              cudnnBackendDescriptor_t pack) {
  if (FakeCudaComputesNothing()) return CUDNN_STATUS_SUCCESS;
  const RecordedPtr planned = AllRecords().Find(plan), packed = AllRecords().Find(pack);
  const UseGuard handle_guard(&handle->in_use);
  const UseGuard plan_guard(&planned->in_use);
  RETURN_IF_FAILED(CheckHandle(*handle));
  const auto engine = planned->One<int64_t>(kEngineOfPlan);
  if (FakeCudnn().fail_execution || FakeCudnn().engines_failing_execution.count(engine) != 0) {
    return Fail(CUDNN_STATUS_EXECUTION_FAILED, "execution switched off");
  }
  ++FakeCudnnCounts().executions;
  if (FakeCudnn().engines_that_spoil_captures.count(engine) != 0) FakeCudaSpoilsCapture();
  const auto ids = packed->All<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto pointers = packed->All<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  std::map<int64_t, void*> bound;
  for (size_t i = 0; i < ids.size(); ++i) bound[ids[i]] = pointers[i];
  void* const workspace = packed->One<void*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
  int64_t bytes = 0, count = 0;
  TF_INTEROP_REAL(cudnnBackendGetAttribute, plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                  CUDNN_TYPE_INT64, 1, &count, &bytes);
  FakeCudaEnqueue(handle->stream, [graph = planned->graph, bound, workspace, bytes] {
    // Overwrites any tensor in the same place.
    if (bytes > 0) std::memset(workspace, 0xA5, bytes);
    RunGraph(*graph, bound);
    if (bytes > 0) std::memset(workspace, 0x5A, bytes);
  });
  return CUDNN_STATUS_SUCCESS;
}

TF_INTEROP_FORWARD(cudnnCreateTensorDescriptor, (cudnnTensorDescriptor_t * made), made)
TF_INTEROP_FORWARD(cudnnSetTensorNdDescriptor,
                   (cudnnTensorDescriptor_t tensor, cudnnDataType_t type, int rank,
                    const int* extents, const int* strides),
                   tensor, type, rank, extents, strides)
TF_INTEROP_FORWARD(cudnnDestroyTensorDescriptor, (cudnnTensorDescriptor_t tensor), tensor)

cudnnStatus_t CUDNNWINAPI cudnnTransformTensor(cudnnHandle_t handle, const void* alpha,
                                               const cudnnTensorDescriptor_t x_descriptor,
                                               const void* x, const void* beta,
                                               const cudnnTensorDescriptor_t y_descriptor,
                                               void* y) {
  const UseGuard guard(&handle->in_use);
  RETURN_IF_FAILED(CheckHandle(*handle));
  int x_rank = 0, y_rank = 0;
  const TensorForm from = ReadForm(x_descriptor, &x_rank), to = ReadForm(y_descriptor, &y_rank);
  if (x_rank != 4 || y_rank != 4) {
    return Fail(CUDNN_STATUS_NOT_SUPPORTED, "copies are documented for four dimensions");
  }
  if (from.dtype != to.dtype || from.extents != to.extents ||
      !IsUnscaled(from.dtype, alpha, beta)) {
    return Fail(CUDNN_STATUS_BAD_PARAM, "tensors differ in type or shape, or are scaled");
  }
  ++FakeCudnnCounts().copies;
  if (FakeCudaComputesNothing()) return CUDNN_STATUS_SUCCESS;
  FakeCudaEnqueue(handle->stream, [from, to, x, y] {
    const int64_t size = SizeOf(from.dtype);
    ForEachPlace(from.extents, [&](const Five& place) {
      std::memcpy(static_cast<char*>(y) + size * to.At(place),
                  static_cast<const char*>(x) + size * from.At(place), size);
    });
  });
  return CUDNN_STATUS_SUCCESS;
}

TF_INTEROP_FORWARD(cudnnCreateFilterDescriptor, (cudnnFilterDescriptor_t * made), made)
TF_INTEROP_FORWARD(cudnnSetFilterNdDescriptor,
                   (cudnnFilterDescriptor_t filter, cudnnDataType_t type,
                    cudnnTensorFormat_t format, int rank, const int* extents),
                   filter, type, format, rank, extents)
TF_INTEROP_FORWARD(cudnnDestroyFilterDescriptor, (cudnnFilterDescriptor_t filter), filter)
TF_INTEROP_FORWARD(cudnnCreateConvolutionDescriptor, (cudnnConvolutionDescriptor_t * made), made)
TF_INTEROP_FORWARD(cudnnSetConvolutionNdDescriptor,
                   (cudnnConvolutionDescriptor_t convolution, int rank, const int* pads,
                    const int* strides, const int* dilations, cudnnConvolutionMode_t mode,
                    cudnnDataType_t sums),
                   convolution, rank, pads, strides, dilations, mode, sums)
TF_INTEROP_FORWARD(cudnnSetConvolutionGroupCount,
                   (cudnnConvolutionDescriptor_t convolution, int count), convolution, count)
TF_INTEROP_FORWARD(cudnnSetConvolutionMathType,
                   (cudnnConvolutionDescriptor_t convolution, cudnnMathType_t math), convolution,
                   math)
TF_INTEROP_FORWARD(cudnnDestroyConvolutionDescriptor, (cudnnConvolutionDescriptor_t convolution),
                   convolution)

// The two entry points of one kind of convolution. Each kind has image, filter and output (x, w and
// y) in a different order, with the result last.
#define TF_INTEROP_LEGACY(kind, Algorithm, get_workspace_size, convolve, first, second, result)  \
  cudnnStatus_t CUDNNWINAPI get_workspace_size(                                                  \
      cudnnHandle_t handle, const first##_descriptor first, const second##_descriptor second,    \
      const cudnnConvolutionDescriptor_t convolution, const result##_descriptor result,          \
      Algorithm algorithm, size_t* bytes) {                                                      \
    return LegacyCall{handle, x, y, w, convolution, kind, NameOf(kind, algorithm)}.AskWorkspace( \
        bytes);                                                                                  \
  }                                                                                              \
  cudnnStatus_t CUDNNWINAPI convolve(                                                            \
      cudnnHandle_t handle, const void* alpha, const first##_descriptor first,                   \
      const void* first##_data, const second##_descriptor second, const void* second##_data,     \
      const cudnnConvolutionDescriptor_t convolution, Algorithm algorithm, void* workspace,      \
      size_t bytes, const void* beta, const result##_descriptor result, void* result##_data) {   \
    return LegacyCall{handle, x, y, w, convolution, kind, NameOf(kind, algorithm)}.Run(          \
        x_data, w_data, y_data, workspace, bytes, alpha, beta);                                  \
  }
using x_descriptor = cudnnTensorDescriptor_t;
using w_descriptor = cudnnFilterDescriptor_t;
using y_descriptor = cudnnTensorDescriptor_t;
TF_INTEROP_LEGACY(ConvolutionKind::kForward, cudnnConvolutionFwdAlgo_t,
                  cudnnGetConvolutionForwardWorkspaceSize, cudnnConvolutionForward, x, w, y)
TF_INTEROP_LEGACY(ConvolutionKind::kBackwardInput, cudnnConvolutionBwdDataAlgo_t,
                  cudnnGetConvolutionBackwardDataWorkspaceSize, cudnnConvolutionBackwardData, w, y,
                  x)
TF_INTEROP_LEGACY(ConvolutionKind::kBackwardFilter, cudnnConvolutionBwdFilterAlgo_t,
                  cudnnGetConvolutionBackwardFilterWorkspaceSize, cudnnConvolutionBackwardFilter, x,
                  y, w)

}  // extern "C"

#pragma GCC visibility pop
