#include "cc_kernels/core/lru_cache.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace tf_interop {
namespace {

using Key = std::vector<int64_t>;
using Cache = LruCache<Key, std::shared_ptr<const int>>;

std::shared_ptr<const int> Value(int value) { return std::make_shared<const int>(value); }

int Found(Cache* cache, const Key& key) {
  const auto found = cache->Find(key);
  return found ? **found : -1;
}

TEST(LruCacheTest, KeepsFirstValuesAndDropsTheLeastRecentlyUsed) {
  Cache cache(3);
  EXPECT_EQ(*cache.Insert({0}, Value(0)), 0);
  EXPECT_EQ(*cache.Insert({0}, Value(8)), 0) << "the first value stays";
  for (const int i : {0, 1, 2}) cache.Insert({i}, Value(i));
  const std::shared_ptr<const int> used = *cache.Find({0});
  const std::weak_ptr<const int> forgotten = *cache.Find({1});
  for (const int i : {2, 0}) cache.Find({i});
  cache.Insert({3}, Value(3));
  EXPECT_EQ(Found(&cache, {1}), -1);
  EXPECT_TRUE(forgotten.expired());
  for (const int i : {0, 2, 3}) EXPECT_EQ(Found(&cache, {i}), i);
  for (const int i : {4, 5, 6}) cache.Insert({i}, Value(i));
  EXPECT_EQ(Found(&cache, {0}), -1);
  EXPECT_EQ(*used, 0) << "a caller keeps its value";
}

}  // namespace
}  // namespace tf_interop
