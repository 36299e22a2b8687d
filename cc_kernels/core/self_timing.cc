#include "cc_kernels/core/self_timing.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>

namespace tf_interop {
namespace {

// A step whose units do not all run, because an op failed, never ends. It is forgotten when as many
// others have begun after it.
constexpr int64_t kMostLaterSteps = 64;
constexpr size_t kMostUnheldGraphs = 64;

// Of parts that are smaller than each core's share. The values between the operations of fewer
// images stay in nearer caches, but filters are read more often.
constexpr int kSmallParts[] = {4, 1};

// All cores first: seldom much slower than stock TensorFlow.
std::vector<UnitWay> WaysOn(int cores, int64_t batch_size) {
  std::vector<UnitWay> ways = {{UnitWay::kStock}, {cores}};
  int width = 1;
  while (2 * width < cores) width *= 2;
  for (; width >= 1 && width < cores; width /= 2) ways.push_back({width});
  if (batch_size > 1 && cores > 1) {
    ways.push_back({/*cores=*/1, UnitWay::kLargestPart});
    for (const int size : kSmallParts) {
      const UnitWay way{/*cores=*/1, size};
      if (PartCount(way, batch_size, cores) > PartCount(ways.back(), batch_size, cores)) {
        ways.push_back(way);
      }
    }
  }
  return ways;
}

int WayOnOneCore(const std::vector<UnitWay>& ways) {
  const auto is_on_one = [](const UnitWay& way) { return way.cores == 1 && way.part_size == 0; };
  return static_cast<int>(std::find_if(ways.begin(), ways.end(), is_on_one) - ways.begin());
}

}  // namespace

std::string NameOf(const UnitWay& way) {
  const auto count = [](int number, const char* noun) {
    return std::to_string(number) + noun + (number == 1 ? "" : "s");
  };
  if (way.is_stock()) return "as stock TensorFlow";
  if (way.part_size == 0) return "on " + count(way.cores, " core");
  if (way.part_size == UnitWay::kLargestPart) return "with the batch divided";
  return "in parts of " + count(way.part_size, " image");
}

int64_t PartCount(const UnitWay& way, int64_t batch_size, int cores) {
  if (way.part_size == 0) return 1;
  const int64_t least = (batch_size + way.part_size - 1) / way.part_size;
  const int64_t even = (least + cores - 1) / cores * cores;
  return std::max<int64_t>(1, std::min(batch_size, even));
}

SelfTiming::SelfTiming(int unit_count, int cores, bool can_divide)
    : unit_count_(unit_count), cores_(cores), can_divide_(can_divide) {}

SelfTiming::Run SelfTiming::Begin(int64_t id, int unit, const std::function<Sizes()>& sizes,
                                  int64_t now_ns) {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto step = FindStep(id);
  if (step == steps_.end()) {
    Open(id, sizes(), now_ns);
    step = steps_.begin();
  }
  // Calls of a function at the same time may belong to one step of TensorFlow's.
  if (step->has_begun[unit]) step->counts = false;
  step->has_begun[unit] = true;
  const WayTrials& trials = step->of->trials;
  Run run{step->of->ways[step->way], step->counts && trials.is_trying()};
  const double limit_us = trials.limit_us();
  if (step->counts && step->turn == trials.turn() && std::isfinite(limit_us)) {
    run.limit_ns = step->begin_ns + static_cast<int64_t>(limit_us * 1e3);
    step->is_too_long = step->is_too_long || now_ns > run.limit_ns;
  }
  if (step->is_too_long) run.way = {};
  return run;
}

void SelfTiming::End(int64_t id, int64_t now_ns, Outcome outcome, double simulated_us) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto step = FindStep(id);
  if (step == steps_.end()) return;
  if (outcome == Outcome::kTooLong) step->is_too_long = true;
  if (outcome == Outcome::kWarmedUp || outcome == Outcome::kFailed) step->counts = false;
  step->simulated_us += simulated_us > 0 ? simulated_us : std::nan("");
  if (--step->left > 0) return;
  WayTrials& trials = step->of->trials;
  if (step->counts && step->turn == trials.turn()) {
    const double us = static_cast<double>(now_ns - step->begin_ns) * 1e-3;
    // Not every unit can stop at the limit.
    if (step->is_too_long || (trials.is_first_run() && us > trials.limit_us())) {
      trials.RecordTooLong(us);
    } else {
      trials.Record(us, std::isnan(step->simulated_us) ? 0 : step->simulated_us);
    }
  }
  steps_.erase(step);
}

SelfTiming::Steps::iterator SelfTiming::FindStep(int64_t id) {
  return std::find_if(steps_.begin(), steps_.end(),
                      [id](const Step& each) { return each.id == id; });
}

void SelfTiming::Open(int64_t id, Sizes sizes, int64_t now_ns) {
  while (!steps_.empty() && opened_ - steps_.back().number >= kMostLaterSteps) steps_.pop_back();
  Step step;
  step.number = opened_++;
  step.id = id;
  step.of = FindSizes(std::move(sizes));
  step.way = step.of->trials.way();
  step.turn = step.of->trials.turn();
  step.begin_ns = now_ns;
  step.left = unit_count_;
  step.has_begun.resize(unit_count_);
  bool is_among_others = false;
  for (Step& other : steps_) {
    if (other.of != step.of || other.turn != step.turn) step.counts = other.counts = false;
    is_among_others = is_among_others || other.of != step.of;
  }
  if (is_among_others && static_cast<int>(steps_.size()) >= cores_) {
    step.way = WayOnOneCore(step.of->ways);
  }
  steps_.push_front(std::move(step));
}

std::shared_ptr<SelfTiming::OfSizes> SelfTiming::FindSizes(Sizes sizes) {
  const auto found = std::find_if(sizes_.begin(), sizes_.end(),
                                  [&](const auto& each) { return each->sizes == sizes; });
  if (found != sizes_.end()) {
    sizes_.splice(sizes_.begin(), sizes_, found);
    return sizes_.front();
  }
  if (sizes_.size() == kMostSizes) sizes_.pop_back();  // an open step holds its own
  std::vector<UnitWay> ways = WaysOn(cores_, can_divide_ && !sizes.empty() ? sizes.front() : 1);
  WayTrials trials(static_cast<int>(ways.size()));
  return sizes_.emplace_front(
      std::make_shared<OfSizes>(OfSizes{std::move(sizes), std::move(ways), std::move(trials)}));
}

std::vector<TrialsReport> SelfTiming::Reports(const std::string& graph) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<TrialsReport> reports;
  for (const auto& of : sizes_) {
    std::string sizes;
    for (const int64_t size : of->sizes) sizes += (sizes.empty() ? "" : "x") + std::to_string(size);
    std::vector<std::string> names;
    for (const UnitWay& way : of->ways) names.push_back(NameOf(way));
    reports.push_back(of->trials.Report(graph, sizes, names));
  }
  return reports;
}

namespace {

struct AllTimings {
  std::mutex mutex;
  // By name and cores: a Session may have fewer. Guarded by mutex.
  std::map<std::pair<std::string, int>, std::shared_ptr<SelfTiming>> of_graph;
};

// Never destroyed, because kernels may still run while the process ends.
AllTimings& Timings() {
  static auto* const timings = new AllTimings();
  return *timings;
}

}  // namespace

std::shared_ptr<SelfTiming> FindSelfTiming(const std::string& graph, int unit_count, int cores,
                                           bool can_divide) {
  AllTimings& timings = Timings();
  const std::lock_guard<std::mutex> lock(timings.mutex);
  std::shared_ptr<SelfTiming>& found = timings.of_graph[{graph, cores}];
  if (found == nullptr) found = std::make_shared<SelfTiming>(unit_count, cores, can_divide);
  std::shared_ptr<SelfTiming> timing = found->unit_count() == unit_count ? found : nullptr;
  // A graph that no kernel holds may come back, when its function is traced again.
  for (auto each = timings.of_graph.begin();
       each != timings.of_graph.end() && timings.of_graph.size() > kMostUnheldGraphs;) {
    each = each->second.use_count() == 1 ? timings.of_graph.erase(each) : std::next(each);
  }
  return timing;
}

std::vector<TrialsReport> ReadSelfTimings() {
  AllTimings& timings = Timings();
  const std::lock_guard<std::mutex> lock(timings.mutex);
  std::vector<TrialsReport> reports;
  for (const auto& [key, timing] : timings.of_graph) {
    for (TrialsReport& report : timing->Reports(key.first)) reports.push_back(std::move(report));
  }
  return reports;
}

}  // namespace tf_interop
