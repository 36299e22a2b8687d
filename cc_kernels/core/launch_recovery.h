// What a stage does where one of its steps cannot be enqueued: cuDNN refuses a plan that it made, a
// launch fails.
//
// The lanes are joined, and then the whole stage runs anew, in sequence on the caller's stream:
// with the backend's own choices, and where these fail too, which may be the same algorithms, with
// those that need least. That gives the right numbers whatever the first attempt got done: a step
// reads nothing that a step of its stage writes and writes the whole of its result, and each
// attempt is ordered behind all of the one before. It is counted (counters.h), and the next call
// goes by its plan again: one failure says nothing about the next.
//
// Nothing is run anew where a lane could not be joined: it might still write what the second
// attempt writes. And once CUDA has met an error that stays (a fault of a kernel that ran before,
// say), every attempt fails. The error then names the step, its algorithm and what the library
// said, of the first attempt and the last.
//
// Errors of work that was enqueued come to light later, when somebody waits for the device: no
// result of theirs reaches anybody, as TensorFlow hands none out without such an error.
#ifndef TF_INTEROP_CORE_LAUNCH_RECOVERY_H_
#define TF_INTEROP_CORE_LAUNCH_RECOVERY_H_

#include <cstddef>
#include <functional>
#include <vector>

#include "cc_kernels/core/backend.h"
#include "cc_kernels/core/convolution.h"
#include "cc_kernels/core/stage_runner.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

// What an attempt chooses algorithms by.
enum class Recovery { kBackendsChoice, kLeastWorkspace };

// `steps` in sequence, without pins.
Status PrepareRecovery(Backend* backend, const std::vector<StageStep>& steps, Recovery recovery,
                       size_t workspace_limit_bytes, PreparedStage* sequence);

// Prepares the stage's steps by PrepareRecovery and gets the workspace of the one lane, which may
// be null for none; both are kept as long as those of RunStage.
using MakeSequence =
    std::function<Status(Recovery recovery, PreparedStage* sequence, void** workspace)>;

// RunStage, and where that fails the above.
Status RunStageOrRecover(Backend* backend, const PreparedStage& stage,
                         const std::vector<ConvolutionBuffers>& buffers,
                         const std::vector<void*>& lane_workspaces,
                         const std::vector<const void*>& joined_filters, Stream caller,
                         const MakeSequence& make_sequence);

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_LAUNCH_RECOVERY_H_
