// The backend for NVIDIA GPUs: CUDA streams through libcuda, convolutions through libcudnn, both
// opened when the first backend is asked for. This header needs no header of CUDA's.
//
// Ownership: backends and their stream groups live until the process ends, and so do the plans that
// were used last, up to a limit. cuDNN's plans and handles cannot be freed safely while the process
// exits, because CUDA may be gone by then.
//
// Thread-safety: everything here may be called from several threads at once. A stream group is
// leased by one call at a time, and so is its cuDNN handle: no handle is ever used by two threads
// at once, which is what cuDNN asks for. Prepare leases a group too, for its handle. Calls may come
// with any CUDA context current, or none; it is left as it was.
//
// Lanes that ask for SMs of their own get streams in green contexts (see sm_partition.h). Such a
// context is made for each list of counts that is asked for, once, and shared by all stages that
// ask for the same. Threads take turns in enqueuing on the streams of one green context.
#ifndef TF_INTEROP_CORE_CUDNN_CUDNN_BACKEND_H_
#define TF_INTEROP_CORE_CUDNN_CUDNN_BACKEND_H_

#include <atomic>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cc_kernels/core/backend.h"
#include "cc_kernels/core/convolution.h"
#include "cc_kernels/core/lru_cache.h"
#include "cc_kernels/core/status.h"

struct CUctx_st;      // what CUcontext points to
struct CUstream_st;   // what CUstream points to
struct cudnnContext;  // what cudnnHandle_t points to

namespace tf_interop {

struct CudaDriver;
struct CudnnLibrary;
struct ExecutionContext;
class GreenContext;
class SmPartition;

class CudnnBackend : public Backend {
 public:
  // The backend of the context that `caller` belongs to, made by the first call for it. Returns
  // kUnavailable where there is no NVIDIA driver, no GPU, or no cuDNN of version 9.0 or newer.
  static Status ForStream(CUstream_st* caller, CudnnBackend** backend);

  // Whether float convolutions may be computed in TF32 where the GPU has it, as TensorFlow does
  // unless tf.config.experimental.enable_tensor_float_32_execution(False) was called. On at first.
  // Holds for convolutions that are prepared from now on.
  void set_allow_tf32(bool allow) override { allow_tf32_ = allow; }

  // See Backend. What cuDNN says of its engines decides, and of legacy algorithms its
  // documentation.
  void set_deterministic(bool deterministic) override { deterministic_ = deterministic; }

  // How many outcomes of Prepare are kept. A program whose shapes change for ever would otherwise
  // fill memory with plans. Many more than can be enqueued and not have run: cuDNN's plans are
  // destroyed when nothing holds them any more, which must not be while they run.
  static constexpr size_t kMostPrepared = 4096;

  // See Backend. The outcome is kept, by convolution, algorithm, limit and switches, also where it
  // is a refusal; only a lack of memory or of a library is tried anew. Two threads may compile the
  // same plan at once, and the first to finish wins. A limit of 0 without an algorithm asks for
  // the least workspace that cuDNN can do with.
  Status Prepare(const Convolution& convolution, const std::string& algorithm,
                 size_t workspace_limit_bytes,
                 std::shared_ptr<const PreparedConvolution>* prepared) override;

  // See Backend and algorithm_list.h.
  Status ListAlgorithms(const Convolution& convolution, AlgorithmScope scope,
                        std::vector<std::string>* algorithms) override;

  // See Backend. What is restored is not kept: Prepare does not know of it.
  Status Restore(const Convolution& convolution, const std::string& serialized,
                 std::shared_ptr<const PreparedConvolution>* prepared) override;

  ~CudnnBackend() override;

  // See Backend. A partition that cannot be had is refused again at once, unless memory was short.
  using Backend::Acquire;
  Status Acquire(const StreamGroupOptions& options, std::unique_ptr<StreamGroup>* group) override;
  void Release(std::unique_ptr<StreamGroup> group) override;

  Status Record(Event* event, Stream stream) override;
  Status Wait(Stream stream, Event* event) override;

  Status Launch(const PreparedConvolution& prepared, const ConvolutionBuffers& buffers,
                void* workspace, StreamGroup* group, Stream stream) override;

  Status TransformFilter(const PreparedConvolution& prepared, const void* filter, void* transformed,
                         StreamGroup* group, Stream stream) override;

  Status FillZero(void* data, size_t bytes, Stream stream) override;

  Status CopyRows(const void* source, size_t source_pitch, void* destination,
                  size_t destination_pitch, size_t row_bytes, size_t rows, Stream stream) override;

 private:
  struct PrepareKey {
    Convolution convolution;
    std::string algorithm;
    size_t workspace_limit_bytes;
    bool allow_tf32;
    bool deterministic;

    bool operator==(const PrepareKey& other) const;
  };
  struct PrepareKeyHash {
    size_t operator()(const PrepareKey& key) const;
  };
  struct PrepareOutcome {
    Status status;
    std::shared_ptr<const PreparedConvolution> prepared;
  };

  // What makes stream groups interchangeable: the green context, or null, and the priority.
  using GroupKind = std::pair<GreenContext*, int>;
  struct PartitionOutcome {
    Status status;
    std::unique_ptr<SmPartition> partition;
  };
  struct PriorityRange {
    int highest = 0, lowest = 0;  // the highest priority is the lowest number
  };

  CudnnBackend(const CudaDriver& driver, const CudnnLibrary& library, CUctx_st* context);

  // Calls `use` with the handle of a leased group while the context is current.
  Status WithHandle(const std::function<Status(cudnnContext*)>& use);

  // Prepares without a look at what has been prepared before.
  PrepareOutcome PrepareAnew(const PrepareKey& key);

  // `prepared`, of which whoever holds it last, on any thread, destroys cuDNN's descriptors with
  // the context current that they belong to.
  std::shared_ptr<const PreparedConvolution> DestroyedInContext(
      std::shared_ptr<const PreparedConvolution> prepared) const;

  Status FindGroupKind(const StreamGroupOptions& options, GroupKind* kind);
  Status FindGreenContext(const std::vector<int>& counts, size_t lane, GreenContext** green);
  Status ClampPriority(int* priority);

  // Where work on `stream` has to be enqueued: the green context of a lane's stream, for all others
  // the backend's own context.
  ExecutionContext ExecutionOf(Stream stream);

  const CudaDriver& driver_;
  const CudnnLibrary& library_;
  CUctx_st* const context_;
  std::atomic<bool> allow_tf32_{true};
  std::atomic<bool> deterministic_{false};

  std::mutex groups_mutex_;
  std::map<GroupKind, std::vector<std::unique_ptr<StreamGroup>>> idle_groups_;
  std::unordered_map<Stream, GreenContext*> green_streams_;

  std::mutex partitions_mutex_;                              // held while a partition is made
  std::map<std::vector<int>, PartitionOutcome> partitions_;  // by the counts of all lanes

  std::mutex priorities_mutex_;
  std::unique_ptr<PriorityRange> priorities_;  // null until a lane asks for one

  std::mutex prepared_mutex_;
  LruCache<PrepareKey, PrepareOutcome, PrepareKeyHash> prepared_{kMostPrepared};
};

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_CUDNN_CUDNN_BACKEND_H_
