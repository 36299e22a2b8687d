// Entry points of both stand-ins are to be found by name, whatever the build's default is.
#pragma GCC visibility push(default)

#include "tests/cc/fake_cudnn.h"

#include <cudnn.h>
#include <dlfcn.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "tests/cc/fake_cuda.h"
#include "tests/cc/fake_cudnn_compute.h"

namespace tf_interop {
namespace {

// Of cuDNN 9.8 and newer; TensorFlow's headers are older.
constexpr auto kDeviceProperty = static_cast<cudnnBackendDescriptorType_t>(38);
constexpr auto kPropertyJson = static_cast<cudnnBackendAttributeName_t>(2702);
constexpr auto kPropertyOfHeuristic = static_cast<cudnnBackendAttributeName_t>(204);
constexpr auto kPropertyOfPlan = static_cast<cudnnBackendAttributeName_t>(407);
constexpr auto kPropertyOfEngine = static_cast<cudnnBackendAttributeName_t>(1307);

thread_local std::string last_error;

// Null where it is not there.
void* RealLibrary() {
  static void* const library = [] {
    const char* const named = std::getenv("TF_INTEROP_REAL_CUDNN");
    return dlopen(named == nullptr ? REAL_CUDNN : named, RTLD_NOW | RTLD_LOCAL);
  }();
  return library;
}

// The properties of FakeCudnn().device.
cudnnStatus_t FindProperty(cudnnBackendDescriptor_t* property) {
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
    const cudnnStatus_t status = TF_INTEROP_REAL(cudnnBackendFinalize, made);
    if (status != CUDNN_STATUS_SUCCESS) return status;
  }
  *property = made;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t SetProperty(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name) {
  cudnnBackendDescriptor_t property = nullptr;
  const cudnnStatus_t found = FindProperty(&property);
  if (found != CUDNN_STATUS_SUCCESS) return found;
  return TF_INTEROP_REAL(cudnnBackendSetAttribute, descriptor, name, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                         1, &property);
}

// What all descriptors were told.
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
  switch (type) {
    case CUDNN_TYPE_BOOLEAN:
      return 1;
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_HANDLE:
      return 8;
    default:
      return 4;
  }
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

constexpr int kEngineOfPlan = -1;  // where a plan's record has it

cudnnStatus_t FinalizePlan(cudnnBackendDescriptor_t plan, const Recorded& record) {
  auto* const handle = record.One<cudnnHandle_t>(CUDNN_ATTR_EXECUTION_PLAN_HANDLE);
  const UseGuard guard(&handle->in_use);
  const cudnnStatus_t status = FakeCudnnCheckHandle(*handle);
  if (status != CUDNN_STATUS_SUCCESS) return status;
  ++FakeCudnnCounts().plans_finalized;
  std::this_thread::sleep_for(std::chrono::microseconds(FakeCudnn().plan_delay_us));
  if (FakeCudnn().fail_plan_allocation || FakeCudaSpoilsCapture()) {
    return FakeCudnnFail(CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED,
                         "no memory for the plan");
  }
  if (FakeCudnn().unsupported_engines.count(record.One<int64_t>(kEngineOfPlan)) != 0) {
    return FakeCudnnFail(CUDNN_STATUS_NOT_SUPPORTED, "engine switched off");
  }
  return TF_INTEROP_REAL(cudnnBackendFinalize, plan);
}

}  // namespace

void* FindReal(const char* name) { return dlsym(RealLibrary(), name); }

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

cudnnStatus_t FakeCudnnFail(cudnnStatus_t status, const std::string& why) {
  last_error = why;
  return status;
}

TensorForm ReadForm(cudnnTensorDescriptor_t descriptor, int* rank) {
  cudnnDataType_t type;
  std::vector<int> extents(CUDNN_DIM_MAX), strides(CUDNN_DIM_MAX);
  TF_INTEROP_REAL(cudnnGetTensorNdDescriptor, descriptor, CUDNN_DIM_MAX, &type, rank,
                  extents.data(), strides.data());
  extents.resize(*rank);
  strides.resize(*rank);
  return {DataTypeOf(type), ToFive(extents, 1), ToFive(strides, 0)};
}

bool IsUnscaled(DataType dtype, const void* alpha, const void* beta) {
  if (dtype == DataType::kDouble) {
    return *static_cast<const double*>(alpha) == 1 && *static_cast<const double*>(beta) == 0;
  }
  return *static_cast<const float*>(alpha) == 1 && *static_cast<const float*>(beta) == 0;
}

cudnnStatus_t FakeCudnnCheckHandle(const cudnnContext& handle) {
  if (FakeCudaCurrentContext() != handle.context) {
    return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM, "another context is current");
  }
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace tf_interop

using namespace tf_interop;  // NOLINT: the C interface of the functions above

extern "C" {

// TF_INTEROP_FAKE_CUDNN_VERSION stands for the version of another cuDNN.
size_t CUDNNWINAPI cudnnGetVersion(void) {
  const char* version = std::getenv("TF_INTEROP_FAKE_CUDNN_VERSION");
  if (version != nullptr) return std::strtoul(version, nullptr, 10);
  return FakeCudnnIsThere() ? TF_INTEROP_REAL(cudnnGetVersion) : 0;
}

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
    return FakeCudnnFail(CUDNN_STATUS_NOT_INITIALIZED, "no context");
  }
  *handle = new cudnnContext();
  (*handle)->context = FakeCudaCurrentContext();
  ++FakeCudnnCounts().handles_made;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t CUDNNWINAPI cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  const UseGuard guard(&handle->in_use);
  handle->stream = stream;
  return FakeCudnnCheckHandle(*handle);
}

cudnnStatus_t CUDNNWINAPI cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                                       cudnnBackendDescriptor_t* descriptor) {
  const cudnnStatus_t status = TF_INTEROP_REAL(cudnnBackendCreateDescriptor, type, descriptor);
  if (status != CUDNN_STATUS_SUCCESS) return status;
  ++FakeCudnnCounts().live_descriptors;
  AllRecords().Add(*descriptor, type);
  return status;
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
  Record(record.get(), name, type, count, values);
  if (name == CUDNN_ATTR_OPERATIONGRAPH_HANDLE) {
    return FakeCudnnCheckHandle(**static_cast<const cudnnHandle_t*>(values));
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
  return TF_INTEROP_REAL(cudnnBackendGetAttribute, descriptor, name, type, asked, count, values);
}

cudnnStatus_t CUDNNWINAPI cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  const RecordedPtr record = AllRecords().Find(descriptor);
  cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
  switch (record->type) {
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
      return FinalizePlan(descriptor, *record);
    case CUDNN_BACKEND_ENGINE_DESCRIPTOR:
      if (FakeCudnn().fail_engine_allocation) {
        return FakeCudnnFail(CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED,
                             "no memory for the engine");
      }
      status = SetProperty(descriptor, kPropertyOfEngine);
      break;
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
      status = SetProperty(descriptor, kPropertyOfHeuristic);
      break;
    default:
      break;
  }
  if (status != CUDNN_STATUS_SUCCESS) return status;
  return TF_INTEROP_REAL(cudnnBackendFinalize, descriptor);
}

cudnnStatus_t CUDNNWINAPI cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                              cudnnBackendDescriptor_t pack) {
  if (FakeCudaComputesNothing()) return CUDNN_STATUS_SUCCESS;
  const RecordedPtr planned = AllRecords().Find(plan), packed = AllRecords().Find(pack);
  const UseGuard handle_guard(&handle->in_use);
  const UseGuard plan_guard(&planned->in_use);
  const cudnnStatus_t status = FakeCudnnCheckHandle(*handle);
  if (status != CUDNN_STATUS_SUCCESS) return status;
  const auto engine = planned->One<int64_t>(kEngineOfPlan);
  if (FakeCudnn().fail_execution || FakeCudnn().engines_failing_execution.count(engine) != 0) {
    return FakeCudnnFail(CUDNN_STATUS_EXECUTION_FAILED, "execution switched off");
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
    // A tensor in the same place would be overwritten.
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
  const cudnnStatus_t status = FakeCudnnCheckHandle(*handle);
  if (status != CUDNN_STATUS_SUCCESS) return status;
  int x_rank = 0, y_rank = 0;
  const TensorForm from = ReadForm(x_descriptor, &x_rank), to = ReadForm(y_descriptor, &y_rank);
  if (x_rank != 4 || y_rank != 4) {
    return FakeCudnnFail(CUDNN_STATUS_NOT_SUPPORTED, "copies are documented for four dimensions");
  }
  if (from.dtype != to.dtype || from.extents != to.extents ||
      !IsUnscaled(from.dtype, alpha, beta)) {
    return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM, "tensors differ in type or shape, or are scaled");
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

}  // extern "C"

#pragma GCC visibility pop
