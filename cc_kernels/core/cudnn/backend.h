// The backend for NVIDIA GPUs: CUDA streams through libcuda, convolutions through libcudnn, both
// opened when the first backend is asked for. This header needs no header of CUDA's.
//
// Ownership: backends and their stream groups live until the process ends, and so do the plans that
// were used last, up to a limit. cuDNN's plans and handles cannot be freed safely while the process
// exits, because CUDA may be gone by then.
//
// Thread-safety: everything here may be called from several threads at once. A stream group is
// leased by one call at a time, and so is its cuDNN handle: no handle is ever used by two threads
// at once, which is what cuDNN asks for. Prepare leases a group too, for its handle. There are
// never more groups of one kind than were out at the same time at some point. Calls may come with
// any CUDA context current, or none; it is left as it was.
//
// Lanes that ask for SMs of their own get streams in green contexts (see sm_partition.h). Such a
// context is made for each list of counts that is asked for, once, and shared by all stages that
// ask for the same. Threads take turns in enqueuing on the streams of one green context.
#ifndef TF_INTEROP_CORE_CUDNN_BACKEND_H_
#define TF_INTEROP_CORE_CUDNN_BACKEND_H_

#include <atomic>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
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

  // How many outcomes of Prepare are kept. A program whose shapes change for ever would otherwise
  // fill memory with plans. Many more than can be enqueued and not have run: cuDNN's plans are
  // destroyed when nothing holds them any more, which must not be while they run.
  static constexpr size_t kMostPrepared = 4096;

  // See Backend. The outcome is kept, by convolution, algorithm and options, also where it is a
  // refusal; only a lack of memory or of a library is tried anew. Two threads may compile the same
  // plan at once, and the first to finish wins. What cuDNN says of its engines decides whether they
  // are deterministic, and of legacy algorithms its documentation.
  Status Prepare(const Convolution& convolution, const std::string& algorithm,
                 const PrepareOptions& options,
                 std::shared_ptr<const PreparedConvolution>* prepared) override;

  // See Backend and algorithm_list.h.
  Status ListAlgorithms(const Convolution& convolution, AlgorithmScope scope, bool allow_tf32,
                        std::vector<std::string>* algorithms) override;

  ~CudnnBackend() override;

  // See Backend. A partition that cannot be had is refused again at once, unless memory was short.
  using Backend::Acquire;
  Status Acquire(const StreamGroupOptions& options, std::unique_ptr<StreamGroup>* group) override;
  void Release(std::unique_ptr<StreamGroup> group) override;

  Status Enter(void** outer) override;
  void Leave(void* outer) override;
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
    PrepareOptions options;

    bool operator==(const PrepareKey& other) const;
  };
  struct PrepareOutcome {
    Status status;
    std::shared_ptr<const PreparedConvolution> prepared;
  };

  // Stream groups that are interchangeable.
  struct GroupPool {
    GreenContext* green = nullptr;  // null for streams of the backend's own context
    int priority = 0;
    bool uses_caller_stream = false;
    std::vector<std::unique_ptr<StreamGroup>> idle;  // guarded by groups_mutex_
  };
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

  // The pool for what a lane asks for; makes it where it is the first to ask so. This and the next
  // two require groups_mutex_.
  Status FindPool(const StreamGroupOptions& options, GroupPool** pool);
  Status FindGreenContext(const std::vector<int>& counts, size_t lane, GreenContext** green);
  Status ClampPriority(int* priority);

  // Calls `use` with the convolution and the group's handle, directed to `stream`.
  template <typename Use>
  Status OnHandle(const PreparedConvolution& prepared, StreamGroup* group, Stream stream,
                  const Use& use);

  // Where work on `stream` has to be enqueued: the green context of a lane's stream, for all others
  // the backend's own context.
  ExecutionContext ExecutionOf(Stream stream);

  const CudaDriver& driver_;
  const CudnnLibrary& library_;
  CUctx_st* const context_;

  // Held while a group is looked for or given back, and while what it takes is made the first time.
  std::mutex groups_mutex_;
  std::map<std::tuple<GreenContext*, int, bool>, GroupPool> pools_;
  std::map<std::vector<int>, PartitionOutcome> partitions_;
  std::unique_ptr<PriorityRange> priorities_;  // null before it is asked for
  std::map<Stream, GreenContext*> green_streams_;
  std::atomic<bool> has_green_streams_{false};  // so that nobody else looks for them

  LruCache<PrepareKey, PrepareOutcome> prepared_{kMostPrepared};
};

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_CUDNN_BACKEND_H_
