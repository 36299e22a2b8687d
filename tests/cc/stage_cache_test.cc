// What a kernel keeps of its last calls.
#include "cc_kernels/core/stage_cache.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace tf_interop {
namespace {

using Signature = std::vector<int64_t>;

std::shared_ptr<const int> Value(int value) { return std::make_shared<const int>(value); }

TEST(StageCacheTest, FindsWhatWasKeptForTheSameNumbers) {
  StageCache<int> cache;
  cache.Insert(Signature{1, 2, 3}, Value(7));
  EXPECT_EQ(*cache.Find(Signature{1, 2, 3}), 7);
  for (const Signature& other : {Signature{1, 2, 4}, Signature{1, 2}, Signature{1, 2, 3, 0},
                                 Signature{3, 2, 1}, Signature{}}) {
    EXPECT_EQ(cache.Find(other), nullptr);
  }
}

TEST(StageCacheTest, KeepsWhatIsThereAlready) {
  StageCache<int> cache;
  EXPECT_EQ(*cache.Insert(Signature{1}, Value(7)), 7);
  EXPECT_EQ(*cache.Insert(Signature{1}, Value(8)), 7);
}

TEST(StageCacheTest, ForgetsWhatWasNotUsedForTheLongestTime) {
  StageCache<int> cache(3);
  for (const int i : {0, 1, 2}) cache.Insert(Signature{i}, Value(i));
  const std::shared_ptr<const int> used = cache.Find(Signature{0});
  const std::weak_ptr<const int> forgotten = cache.Find(Signature{1});
  cache.Find(Signature{2});
  cache.Find(Signature{0});
  cache.Insert(Signature{3}, Value(3));
  EXPECT_EQ(cache.Find(Signature{1}), nullptr);
  EXPECT_TRUE(forgotten.expired());
  for (const int i : {0, 2, 3}) EXPECT_EQ(*cache.Find(Signature{i}), i);
  for (const int i : {4, 5, 6}) cache.Insert(Signature{i}, Value(i));
  EXPECT_EQ(cache.Find(Signature{0}), nullptr);
  EXPECT_EQ(*used, 0) << "who was given one keeps it";
}

TEST(StageCacheTest, ThreadsShareIt) {
  StageCache<int> cache(4);
  std::atomic<int> wrong{0};
  const auto use = [&] {
    for (int i = 0; i < 20000; ++i) {
      const Signature signature = {i % 6, 5};
      std::shared_ptr<const int> found = cache.Find(signature);
      if (found == nullptr) found = cache.Insert(signature, Value(i % 6));
      wrong += *found != i % 6;
    }
  };
  std::thread first(use), second(use);
  first.join();
  second.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace tf_interop
