#include "cc_kernels/core/ready_steps.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <limits>
#include <numeric>
#include <queue>
#include <utility>

namespace tf_interop {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::infinity();
// Limits between steps that are divided and others, of which the best is taken.
constexpr int kLimits = 16;
// Steps that run at the same time slow each other down, by up to a fifth where this was measured,
// so lanes must be clearly faster in a simulation.
constexpr double kClearlyFaster = 0.9;
// Another plan must take at most this share of the time of the one before.
constexpr double kWorthAnotherPlan = 0.97;
// Runs of a plan in which threads still meet steps that they have not run before.
constexpr int kFirstRuns = 10;
// The latest runs of which the median is a usual one.
constexpr size_t kUsualRuns = 9;

// Steps that take at least `limit_us` on one core are divided over all.
LanePlan PlanWithLimit(const StepOrder& order, const std::vector<double>& one_us,
                       const std::vector<double>& all_us, double limit_us) {
  const int count = order.step_count();
  LanePlan plan{std::vector<bool>(count), std::vector<double>(count)};
  for (int step = count - 1; step >= 0; --step) {
    plan.is_wide[step] = one_us[step] >= limit_us;
    for (const int reader : order.readers(step)) {
      plan.ranks[step] = std::max(plan.ranks[step], plan.ranks[reader]);
    }
    plan.ranks[step] += plan.is_wide[step] ? all_us[step] : one_us[step];
  }
  return plan;
}

}  // namespace

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

LanePlan PlanOfOneCoreEach(const StepOrder& order) {
  const std::vector<double> any(order.step_count(), 1.0);
  return PlanWithLimit(order, any, any, /*limit_us=*/kUnknown);
}

double SimulateLanes(const StepOrder& order, const LanePlan& plan,
                     const std::vector<double>& one_us, const std::vector<double>& all_us,
                     int cores) {
  using End = std::pair<double, int>;  // of a step
  std::priority_queue<End, std::vector<End>, std::greater<>> running;
  ReadySteps ready(order, plan);
  double now_us = 0;
  const auto begin = [&](int step) {
    if (step == ReadySteps::kNone) return false;
    running.emplace(now_us + (plan.is_wide[step] ? all_us[step] : one_us[step]), step);
    return true;
  };
  while (true) {
    while (static_cast<int>(running.size()) < cores && begin(ready.Take())) {
    }
    if (running.empty()) return now_us;
    const int step = running.top().second;
    now_us = running.top().first;
    running.pop();
    begin(ready.TakeAfter(step));
  }
}

LanePlan PlanLanes(const StepOrder& order, const std::vector<double>& one_us,
                   const std::vector<double>& all_us, int cores) {
  std::vector<double> sorted = one_us;
  std::sort(sorted.begin(), sorted.end());
  LanePlan best = PlanWithLimit(order, one_us, all_us, /*limit_us=*/0);
  double best_us = kClearlyFaster * SimulateLanes(order, best, one_us, all_us, cores);
  for (int i = 1; i <= kLimits; ++i) {
    const size_t place = i * sorted.size() / kLimits;
    const double limit_us = place < sorted.size() ? sorted[place] : kUnknown;
    LanePlan plan = PlanWithLimit(order, one_us, all_us, limit_us);
    const double us = SimulateLanes(order, plan, one_us, all_us, cores);
    if (us < best_us) {
      best_us = us;
      best = std::move(plan);
    }
  }
  return best;
}

void StepTimes::Record(int cores, const std::vector<double>& us) {
  const std::lock_guard<std::mutex> lock(mutex_);
  OfCores& of = of_cores_[cores];
  of.us.resize(us.size(), kUnknown);
  for (size_t step = 0; step < us.size(); ++step) {
    if (us[step] >= of.us[step]) continue;
    of.us[step] = us[step];
    is_stale_ = true;
  }
  const double run_us = std::accumulate(us.begin(), us.end(), 0.0);
  if (of.runs_us.size() < kUsualRuns) {
    of.runs_us.push_back(run_us);
  } else {
    of.runs_us[of.oldest++ % kUsualRuns] = run_us;
  }
}

double StepTimes::OfCores::Slowdown() const {
  std::vector<double> sorted = runs_us;
  std::nth_element(sorted.begin(), sorted.begin() + sorted.size() / 2, sorted.end());
  return sorted[sorted.size() / 2] / std::accumulate(us.begin(), us.end(), 0.0);
}

void StepTimes::Plan() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!std::exchange(is_stale_, false)) return;
  const std::vector<double>& one_us = of_cores_[1].us;
  if (one_us.empty()) return;
  for (auto& [cores, of] : of_cores_) {
    if (cores == 1 || of.us.empty()) continue;
    LanePlan plan = PlanLanes(order_, one_us, of.us, cores);
    const auto simulated_us = [&, &us = of.us, cores = cores](const LanePlan& each) {
      return SimulateLanes(order_, each, one_us, us, cores);
    };
    const double us = simulated_us(plan);
    if (of.plan != nullptr) {
      of.simulated_us = simulated_us(*of.plan);
      if (us > kWorthAnotherPlan * of.simulated_us) continue;
    }
    of.plan = std::make_shared<LanePlan>(std::move(plan));
    of.simulated_us = us;
    of.runs = 0;
  }
}

StepTimes::Planned StepTimes::BeginRun(int cores) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = of_cores_.find(cores);
  if (found == of_cores_.end() || found->second.plan == nullptr) return {};
  OfCores& of = found->second;
  if (of.runs <= kFirstRuns) ++of.runs;
  // Most steps run on one core.
  return {of.plan, of.simulated_us * of_cores_[1].Slowdown(), of.runs <= kFirstRuns};
}

}  // namespace tf_interop
