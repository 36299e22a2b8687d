#include "cc_kernels/core/way_trials.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <limits>
#include <utility>

namespace tf_interop {
namespace {

// Ways stay in a trial while their median is at most this many times the fastest, after each round.
constexpr double kOutAfterRound[] = {2.0, 1.3, 1.15, 1.1, 1.1, 1.1};
constexpr int kRounds = std::size(kOutAfterRound);
// A run in a way that takes this many times the fastest is not finished in it.
constexpr double kTooLong = 2.0;
// The first run in a way makes oneDNN's primitives, so it may take longer.
constexpr double kTooLongAtFirst = 4.0;
// Another way must take at most this share of the time of way 0, or of the way kept before.
constexpr double kClearlyFaster = 0.98;
// Ways of the last trial that took at most this many times the fastest take part in the next.
constexpr double kNearlyAsFast = 1.5;

// A turn counts as many runs as fit into this, within bounds.
constexpr double kTurnUs = 10e3;
constexpr int kMostRunsOfTurn = 4;
// Longer runs replace the caches' contents anyway.
constexpr double kLongUs = 20e3;

constexpr int64_t kLongestInterval = 25600;
// The usual time of the kept way has changed if it is not within this factor of the trial's.
constexpr double kDrift = 1.3;
// Steps before a change counts. More after each, so that a load that comes and goes costs little.
constexpr int64_t kFirstDriftInterval = 100;
constexpr int64_t kLongestDriftInterval = 6400;

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

WayTrials::WayTrials(int ways)
    : entries_(ways), interval_(4 * kFirstDriftInterval), drift_interval_(kFirstDriftInterval) {
  Begin(/*is_full=*/true);
}

void WayTrials::Begin(bool is_full) {
  const double fastest = entries_[kept_].median_us;
  candidates_.clear();
  for (int way = 0; way < static_cast<int>(entries_.size()); ++way) {
    Entry& entry = entries_[way];
    entry.samples.clear();
    const bool is_near = entry.median_us > 0 && entry.median_us <= kNearlyAsFast * fastest;
    if (way == 0 || is_full || is_near) candidates_.push_back(way);
  }
  is_full_ = is_full;
  is_trying_ = true;
  round_ = 0;
  place_ = 0;
  ++turn_;
  BeginTurn();
}

void WayTrials::BeginTurn() {
  const double fastest = FastestUs();
  const bool is_short = fastest > 0 && fastest <= kLongUs;
  const bool is_first = entries_[candidates_[place_]].samples.empty();
  uncounted_ = (is_first ? 1 : 0) + (is_short ? 1 : 0);
  counted_ = 1;
  if (fastest > 0) {
    counted_ = std::clamp(static_cast<int>(kTurnUs / fastest), 1, kMostRunsOfTurn);
  }
}

double WayTrials::FastestUs() const {
  double fastest = 0;
  for (const int way : candidates_) {
    const std::vector<double>& samples = entries_[way].samples;
    if (samples.empty()) continue;
    const double us = Median(samples);
    if (fastest == 0 || us < fastest) fastest = us;
  }
  return fastest;
}

TrialsReport WayTrials::Report(std::string name, std::string sizes,
                               const std::vector<std::string>& way_names) const {
  TrialsReport report;
  report.name = std::move(name);
  report.sizes = std::move(sizes);
  report.way = way_names[way()];
  report.is_trying = is_trying_;
  if (total_us_ > 0) report.share_lost = lost_us_ / total_us_;
  for (size_t way = 0; way < entries_.size(); ++way) {
    const Entry& entry = entries_[way];
    report.ways.push_back({way_names[way], entry.median_us, entry.runs, entry.simulated_us});
  }
  return report;
}

double WayTrials::limit_us() const {
  const double fastest = is_trying_ && way() != 0 ? FastestUs() : 0;
  if (fastest == 0) return std::numeric_limits<double>::infinity();
  return (is_first_run() ? kTooLongAtFirst : kTooLong) * fastest;
}

void WayTrials::Record(double us, double simulated_us) {
  ++entries_[way()].runs;
  entries_[way()].simulated_us = simulated_us;
  total_us_ += us;
  if (is_trying_) {
    if (uncounted_ > 0) {
      --uncounted_;
      const double fastest = FastestUs();
      if (fastest > 0) lost_us_ += std::max(0.0, us - fastest);
      return;
    }
    entries_[way()].samples.push_back(us);
    if (--counted_ > 0) return;
    ++place_;
    EndTurn();
    return;
  }
  ++since_;
  usual_us_ = since_ == 1 ? us : 0.95 * usual_us_ + 0.05 * us;
  const double expected = entries_[kept_].median_us;
  if (since_ >= drift_interval_ &&
      (usual_us_ > kDrift * expected || kDrift * usual_us_ < expected)) {
    drift_interval_ = std::min(2 * drift_interval_, kLongestDriftInterval);
    Begin(/*is_full=*/true);
  } else if (since_ >= interval_) {
    Begin(/*is_full=*/false);
  }
}

void WayTrials::RecordTooLong(double us) {
  ++entries_[way()].runs;
  total_us_ += us;
  lost_us_ += us - FastestUs();
  entries_[way()].median_us = us;
  entries_[way()].samples.clear();
  candidates_.erase(candidates_.begin() + static_cast<std::ptrdiff_t>(place_));  // never way 0
  EndTurn();
}

void WayTrials::EndTurn() {
  ++turn_;
  if (place_ == candidates_.size()) EndRound();
  if (is_trying_) BeginTurn();
}

void WayTrials::EndRound() {
  const double most_us = kOutAfterRound[round_] * FastestUs();
  ++round_;
  const auto is_out = [&](int way) {
    const Entry& entry = entries_[way];
    return way != 0 && !entry.samples.empty() && Median(entry.samples) > most_us;
  };
  std::vector<int> stay;
  for (const int way : candidates_) {
    if (is_out(way)) {
      entries_[way].median_us = Median(entries_[way].samples);
    } else {
      stay.push_back(way);
    }
  }
  std::reverse(stay.begin(), stay.end());  // so that no way always follows the same one
  candidates_ = std::move(stay);
  place_ = 0;
  if (round_ == kRounds || candidates_.size() == 1) End();
}

void WayTrials::End() {
  const int before = kept_;
  for (const int way : candidates_) entries_[way].median_us = Median(entries_[way].samples);
  const double fastest = FastestUs();
  for (const Entry& entry : entries_) {
    for (const double us : entry.samples) lost_us_ += std::max(0.0, us - fastest);
  }
  const auto median_of = [this](int way) { return entries_[way].median_us; };
  const auto takes_part = [this](int way) {
    return std::find(candidates_.begin(), candidates_.end(), way) != candidates_.end();
  };
  const int best =
      *std::min_element(candidates_.begin(), candidates_.end(),
                        [&](int left, int right) { return median_of(left) < median_of(right); });
  kept_ = best;
  if (takes_part(before) && median_of(best) > kClearlyFaster * median_of(before)) kept_ = before;
  if (median_of(kept_) > kClearlyFaster * median_of(0)) kept_ = 0;
  if (kept_ == before && !is_full_) {
    interval_ = std::min(2 * interval_, kLongestInterval);
    drift_interval_ = std::max(drift_interval_ / 2, kFirstDriftInterval);
  } else {
    interval_ = 4 * drift_interval_;
  }
  is_trying_ = false;
  since_ = 0;
  usual_us_ = 0;
}

}  // namespace tf_interop
