// Finds the fastest of several ways to run the same work, from the times of its own runs.
//
// As cuDNN's benchmark mode does for one convolution, but for as long as the program runs. In a
// trial the ways take turns, so that all meet the same load. Ways that are much slower than the
// fastest drop out early. The fastest is kept until the next trial. Trials follow at intervals that
// double while the result stays the same, and at once if the time of the kept way has changed.
#ifndef TF_INTEROP_CORE_WAY_TRIALS_H_
#define TF_INTEROP_CORE_WAY_TRIALS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tf_interop {

// What trials have found, for the user's status report.
struct TrialsReport {
  struct TimedWay {
    std::string way;
    double median_us = 0;     // 0: not timed
    int64_t runs = 0;         // that were timed
    double simulated_us = 0;  // 0: it has no plan that was simulated
  };
  std::string name;   // of the graph or stage that is tried
  std::string sizes;  // of its inputs, such as 1x8
  std::string way;    // of the next run
  bool is_trying = false;
  double share_lost = 0;  // of the time of timed runs, to slower ways
  std::vector<TimedWay> ways;
};

// Not thread-safe. Times are in microseconds.
class WayTrials {
 public:
  // Way 0 is the one to trust: it always takes part, and wins if no other is clearly faster. Begins
  // with a trial.
  explicit WayTrials(int ways);

  // The way of a run that begins now.
  int way() const { return is_trying_ ? candidates_[place_] : kept_; }
  // Changes whenever the way may change. Only runs of this turn count.
  int64_t turn() const { return turn_; }
  // A run that has taken so long should be finished in way 0; infinite for way 0 itself.
  double limit_us() const;
  // Whether the way has not run in this trial yet.
  bool is_first_run() const { return uncounted_ > 0 && entries_[way()].samples.empty(); }

  // A run of this turn, from its begin to its end, took `us`; in a simulation `simulated_us`.
  void Record(double us, double simulated_us = 0);
  // A run of this turn reached the limit after `us`: its way is out of this trial.
  void RecordTooLong(double us);

  bool is_trying() const { return is_trying_; }
  // `way_names` are by number.
  TrialsReport Report(std::string name, std::string sizes,
                      const std::vector<std::string>& way_names) const;

 private:
  struct Entry {
    double median_us = 0;  // in the latest trial that it took part in; 0 if it never did
    int64_t runs = 0;
    double simulated_us = 0;      // of the latest run
    std::vector<double> samples;  // of this trial
  };

  void Begin(bool is_full);
  void BeginTurn();
  void EndTurn();
  void EndRound();
  void End();
  // The least median of this trial; 0 before the first.
  double FastestUs() const;

  std::vector<Entry> entries_;
  std::vector<int> candidates_;  // in the order of their turns
  size_t place_ = 0;             // of the way whose turn it is
  int64_t turn_ = 0;
  int round_ = 0;      // rounds of this trial that are over
  int uncounted_ = 0;  // runs of this turn that only fill caches
  int counted_ = 0;    // runs of this turn that still count
  bool is_trying_ = false;
  bool is_full_ = true;  // all ways take part in this trial, not only those near in the last

  int kept_ = 0;
  double usual_us_ = 0;     // a running mean of the kept way since the trial
  int64_t since_ = 0;       // runs since the trial
  int64_t interval_;        // runs until the next
  int64_t drift_interval_;  // runs until the next if the time has changed
  double total_us_ = 0;     // of all runs
  double lost_us_ = 0;      // what runs in slower ways cost more than the fastest
};

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_WAY_TRIALS_H_
