#include "cc_kernels/core/trace.h"

#include <atomic>
#include <utility>

namespace tf_interop {
namespace {

std::atomic<Tracer*> process_tracer{nullptr};

std::shared_ptr<const TraceLabel>& ThreadLabel() {
  static thread_local std::shared_ptr<const TraceLabel> label;
  return label;
}

}  // namespace

void SetTracer(Tracer* tracer) { process_tracer.store(tracer, std::memory_order_release); }

Tracer* TraceScope::ActiveTracer() {
  Tracer* const tracer = process_tracer.load(std::memory_order_acquire);
  return tracer != nullptr && tracer->IsActive() ? tracer : nullptr;
}

void TraceScope::Begin(Tracer* tracer, TraceLabel label) {
  span_ = tracer->Begin(label);
  outer_ = std::exchange(ThreadLabel(), std::make_shared<const TraceLabel>(std::move(label)));
}

TraceScope::~TraceScope() {
  if (span_ != nullptr) ThreadLabel() = std::move(outer_);
}

std::shared_ptr<const TraceLabel> CurrentTraceLabel() { return ThreadLabel(); }

}  // namespace tf_interop
