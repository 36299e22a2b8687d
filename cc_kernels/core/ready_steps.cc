#include "cc_kernels/core/ready_steps.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace tf_interop {

StepOrder::StepOrder(const std::vector<std::vector<int>>& sources, std::vector<bool> is_long)
    : readers_(sources.size()), is_long_(std::move(is_long)) {
  const int count = static_cast<int>(sources.size());
  for (int step = 0; step < count; ++step) {
    source_counts_.push_back(static_cast<int>(sources[step].size()));
    for (const int source : sources[step]) readers_[source].push_back(step);
    const bool follows =
        std::find(sources[step].begin(), sources[step].end(), step - 1) != sources[step].end();
    is_chain_ = is_chain_ && (step == 0 || follows);
  }
}

LanePlan PlanOfOneCoreEach(const StepOrder& order) {
  const int count = order.step_count();
  LanePlan plan{std::vector<bool>(count, false), std::vector<double>(count)};
  for (int step = count - 1; step >= 0; --step) {
    for (const int reader : order.readers(step)) {
      plan.ranks[step] = std::max(plan.ranks[step], plan.ranks[reader] + 1);
    }
  }
  return plan;
}

ReadySteps::ReadySteps(const StepOrder& order, const LanePlan& plan)
    : order_(order), plan_(plan), left_(order.source_counts()), not_done_(order.step_count()) {
  for (int step = 0; step < order.step_count(); ++step) {
    if (left_[step] == 0) ready_.push_back(step);
  }
  Update();
}

int ReadySteps::Take() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return Take(FindBest(0));
}

int ReadySteps::TakeAfter(int step) {
  bool changes = false;
  int next = kNone;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    --running_;
    --not_done_;
    runs_wide_ = false;
    const size_t first_new = ready_.size();
    if (!is_stopped_) {
      for (const int reader : order_.readers(step)) {
        if (--left_[reader] == 0) ready_.push_back(reader);
      }
    }
    // A step that reads the result is best run where the result is in the cache.
    int place = FindBest(first_new);
    if (place == kNone || plan_.is_wide[ready_[place]]) place = FindBest(0);
    next = Take(place);
    changes = !ready_.empty() || is_over();
  }
  if (changes) changed_.notify_all();
  return next;
}

void ReadySteps::Stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_stopped_ = true;
    ready_.clear();
    Update();
  }
  changed_.notify_all();
}

void ReadySteps::Wait() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return FindBest(0) != kNone || is_over(); });
}

int ReadySteps::FindBest(size_t first) const {
  if (runs_wide_) return kNone;
  int best = kNone;
  for (size_t place = first; place < ready_.size(); ++place) {
    if (running_ > 0 && plan_.is_wide[ready_[place]]) continue;
    if (best == kNone || plan_.ranks[ready_[place]] > plan_.ranks[ready_[best]]) {
      best = static_cast<int>(place);
    }
  }
  return best;
}

int ReadySteps::Take(int place) {
  int step = kNone;
  if (place != kNone) {
    step = ready_[place];
    ready_.erase(ready_.begin() + place);
    ++running_;
    runs_wide_ = plan_.is_wide[step];
  }
  Update();
  return step;
}

void ReadySteps::Update() {
  int free = 0;
  if (!runs_wide_) {
    for (const int step : ready_) {
      free += order_.is_long(step) && (running_ == 0 || !plan_.is_wide[step]) ? 1 : 0;
    }
  }
  free_count_.store(free, std::memory_order_relaxed);
  is_over_.store(not_done_ == 0 || (is_stopped_ && running_ == 0), std::memory_order_release);
}

}  // namespace tf_interop
