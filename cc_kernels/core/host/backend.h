// The CPU as a device of the runner: each stream group is a queue on a thread of its own, which
// computes convolutions by their definition (reference_convolution.h).
//
// It has two algorithms, so that there is a choice: BUFFERED adds up in its workspace, DIRECT needs
// none. Both transform half and bfloat16 filters to double.
#ifndef TF_INTEROP_CORE_HOST_BACKEND_H_
#define TF_INTEROP_CORE_HOST_BACKEND_H_

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cc_kernels/core/backend.h"
#include "cc_kernels/core/host/stream.h"

namespace tf_interop {

// Thread-safe. Later events on a stream pass its error on, so the caller's stream has it after the
// join.
//
// It ignores priorities.
//
// It refuses algorithms while the environment variable TF_INTEROP_HOST_REFUSES names them, as cuDNN
// refuses some while memory is short. Tests of the op set this variable.
class HostBackend : public Backend {
 public:
  Status Prepare(const Convolution& convolution, const std::string& algorithm,
                 const PrepareOptions& options,
                 std::shared_ptr<const PreparedConvolution>* prepared) override;
  Status ListAlgorithms(const Convolution& convolution, AlgorithmScope scope, bool allow_tf32,
                        std::vector<std::string>* algorithms) override;

  using Backend::Acquire;
  Status Acquire(int priority, std::unique_ptr<StreamGroup>* group) override;
  void Release(std::unique_ptr<StreamGroup> group) override;
  Status Mark(Stream stream, const std::shared_ptr<const TimeMark>& since,
              std::shared_ptr<const TimeMark>* mark) override;
  Status Record(Event event, Stream stream) override;
  Status Wait(Stream stream, Event event) override;
  Status Synchronize(Stream stream) override;
  Status Launch(const PreparedConvolution& prepared, const ConvolutionBuffers& buffers,
                void* workspace, Stream stream) override;
  Status TransformFilter(const PreparedConvolution& prepared, const void* filter, void* transformed,
                         Stream stream) override;
  Status FillZero(void* data, size_t bytes, Stream stream) override;
  Status CopyRows(const void* source, size_t source_pitch, void* destination,
                  size_t destination_pitch, size_t row_bytes, size_t rows, Stream stream) override;

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<StreamGroup>> idle_;  // guarded by mutex_
};

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_HOST_BACKEND_H_
