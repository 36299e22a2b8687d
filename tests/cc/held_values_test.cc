#include "cc_kernels/core/held_values.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <thread>

namespace tf_interop {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

TEST(HeldValuesTest, ThoseThatWereUsedLongAgoMakeRoom) {
  setenv("TF_INTEROP_HELD_MB", "10", /*overwrite=*/1);  // read once
  auto first = std::make_shared<const int>(1);
  const std::weak_ptr<const int> of_first = first;
  Held<int> places[3];
  places[0].Set(std::move(first), 4 * kMiB);
  places[1].Set(std::make_shared<const int>(2), 4 * kMiB);
  EXPECT_FALSE(MakeRoomForHeld(4 * kMiB)) << "both were used just now";
  EXPECT_TRUE(MakeRoomForHeld(2 * kMiB));
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  EXPECT_EQ(*places[1].Get(), 2);
  EXPECT_FALSE(MakeRoomForHeld(11 * kMiB));
  EXPECT_EQ(places[0].Get(), nullptr);
  EXPECT_TRUE(of_first.expired());
  EXPECT_EQ(*places[1].Get(), 2);
  places[2].Set(std::make_shared<const int>(3), 6 * kMiB);
  EXPECT_FALSE(MakeRoomForHeld(1));
  EXPECT_EQ(*places[2].Take(), 3);
  EXPECT_TRUE(MakeRoomForHeld(6 * kMiB));
  {
    Held<int> gone;
    gone.Set(std::make_shared<const int>(4), 6 * kMiB);
    EXPECT_FALSE(MakeRoomForHeld(1));
  }
  EXPECT_TRUE(MakeRoomForHeld(6 * kMiB));
}

}  // namespace
}  // namespace tf_interop
