#include "cc_kernels/core/measure/bench.h"

#include <algorithm>
#include <utility>

namespace tf_interop {
namespace {

// Reads as NaN in every type.
constexpr unsigned char kUnwritten = 0xFF;

// The value below which `fraction` of the sorted values lie, linear between neighbours.
double Percentile(const std::vector<double>& sorted, double fraction) {
  const double position = fraction * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(position);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (position - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

TfiTime Summarize(std::vector<double> times_us) {
  std::sort(times_us.begin(), times_us.end());
  return {Percentile(times_us, 0.5), (Percentile(times_us, 0.9) - Percentile(times_us, 0.1)) / 2};
}

size_t Given(int64_t value, size_t otherwise) {
  return value < 0 ? otherwise : static_cast<size_t>(value);
}

}  // namespace

DeviceMemory::~DeviceMemory() {
  // After a failure work may still be pending, and its error has been reported already.
  (void)device_->Synchronize();
  for (void* data : allocated_) device_->Free(data);
}

Status DeviceMemory::Allocate(size_t bytes, void** data) {
  *data = nullptr;
  if (bytes == 0) return Status::Ok();
  allocated_.reserve(allocated_.size() + 1);
  TF_INTEROP_RETURN_IF_ERROR(device_->Allocate(bytes, data));
  allocated_.push_back(*data);
  return Status::Ok();
}

Status DeviceMemory::AllocateCopy(const Bytes& bytes, void** data) {
  TF_INTEROP_RETURN_IF_ERROR(Allocate(bytes.size(), data));
  return device_->CopyToDevice(bytes.data(), bytes.size(), *data);
}

Status Bench::SetUp(const std::vector<const MeasuredProblem*>& problems,
                    const MeasureOptions& options, int64_t runs) {
  const MeasuringDefaults defaults = device_->defaults();
  head_start_bytes_ = Given(options.head_start_bytes, defaults.head_start_bytes);
  TF_INTEROP_RETURN_IF_ERROR(memory_.Allocate(head_start_bytes_, &head_start_));
  size_t bytes = 0;
  for (const MeasuredProblem* problem : problems) bytes += problem->bytes();
  const size_t wanted = Given(options.cache_bytes, defaults.cache_bytes) / bytes + 1;
  copies_.resize(std::min(wanted, static_cast<size_t>(runs)));
  for (StageBuffers& copy : copies_) {
    for (const MeasuredProblem* problem : problems) {
      ConvolutionBuffers buffers;
      for (size_t i = 0; i < problem->inputs.size(); ++i) {
        if (i == 0 && problem->image_of) {
          buffers.inputs[i] = copy.steps[*problem->image_of].inputs[i];
          continue;
        }
        void* input = nullptr;
        TF_INTEROP_RETURN_IF_ERROR(memory_.AllocateCopy(problem->inputs[i], &input));
        buffers.inputs[i] = input;
      }
      TF_INTEROP_RETURN_IF_ERROR(memory_.Allocate(problem->result_bytes, &buffers.result));
      copy.steps.push_back(buffers);
    }
  }
  return Status::Ok();
}

Status Bench::AllocateWorkspaces(const std::vector<Runnable*>& ways) {
  std::vector<size_t> bytes;
  for (const Runnable* way : ways) {
    const std::vector<size_t>& lanes = way->stage.lane_workspace_bytes;
    bytes.resize(std::max(bytes.size(), lanes.size()));
    for (size_t i = 0; i < lanes.size(); ++i) bytes[i] = std::max(bytes[i], lanes[i]);
  }
  for (size_t i = 0; i < bytes.size(); ++i) {
    void* workspace = nullptr;
    TF_INTEROP_RETURN_IF_ERROR(memory_.Allocate(bytes[i], &workspace));
    for (Runnable* way : ways) {
      if (i < way->stage.lane_workspace_bytes.size()) way->workspaces.push_back(workspace);
    }
  }
  return Status::Ok();
}

Status Bench::RunForResult(const Runnable& runnable, Bytes* result) {
  std::fill(result->begin(), result->end(), kUnwritten);
  void* const data = copies_[0].steps[0].result;
  TF_INTEROP_RETURN_IF_ERROR(device_->CopyToDevice(result->data(), result->size(), data));
  TF_INTEROP_RETURN_IF_ERROR(RunOn(runnable, &copies_[0]));
  TF_INTEROP_RETURN_IF_ERROR(device_->Synchronize());
  return device_->CopyFromDevice(data, result->size(), result->data());
}

Status Bench::TimeRun(const Runnable& runnable, double* elapsed_us) {
  if (head_start_bytes_ > 0) {
    TF_INTEROP_RETURN_IF_ERROR(
        device_->backend()->FillZero(head_start_, head_start_bytes_, device_->stream()));
  }
  TF_INTEROP_RETURN_IF_ERROR(device_->StartTimer());
  TF_INTEROP_RETURN_IF_ERROR(RunOnNextCopy(runnable));
  TF_INTEROP_RETURN_IF_ERROR(device_->StopTimer());
  return device_->ReadTimer(elapsed_us);
}

Status Bench::TraceRun(const Runnable& runnable, std::vector<TracedKernel>* kernels,
                       Status* traced) {
  kernels->clear();
  *traced = device_->StartTrace();
  if (!traced->ok()) return Status::Ok();
  Status ran = RunOnNextCopy(runnable);
  ran.Update(device_->Synchronize());
  *traced = device_->StopTrace(kernels);
  if (!traced->ok()) kernels->clear();
  return ran;
}

Status Bench::RunOn(const Runnable& runnable, StageBuffers* copy) {
  copy->lane_workspaces = runnable.workspaces;
  return RunStage(device_->backend(), runnable.stage, *copy, device_->stream());
}

Status Bench::RunOnNextCopy(const Runnable& runnable) {
  StageBuffers& copy = copies_[next_copy_];
  next_copy_ = (next_copy_ + 1) % copies_.size();
  return RunOn(runnable, &copy);
}

Status TimeByTurns(Bench* bench, const std::vector<const Runnable*>& ways,
                   const MeasureOptions& options, std::vector<TfiTime>* times) {
  std::vector<std::vector<double>> all_us(ways.size());
  for (int64_t turn = 0; turn < options.warmup_runs + options.repetitions; ++turn) {
    for (size_t i = 0; i < ways.size(); ++i) {
      const size_t way = (i + turn) % ways.size();
      double elapsed_us = 0;
      TF_INTEROP_RETURN_IF_ERROR(bench->TimeRun(*ways[way], &elapsed_us));
      if (turn >= options.warmup_runs) all_us[way].push_back(elapsed_us);
    }
  }
  times->clear();
  for (std::vector<double>& each : all_us) times->push_back(Summarize(std::move(each)));
  return Status::Ok();
}

}  // namespace tf_interop
