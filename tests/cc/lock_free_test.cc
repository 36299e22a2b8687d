// What threads share without a lock.
#include "cc_kernels/core/lock_free.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace tf_interop {
namespace {

TEST(ShelfTest, GivesWhatWasPutAndRefusesWhatThereIsNoRoomFor) {
  Shelf<int, 2> shelf;
  EXPECT_EQ(shelf.Take(), nullptr);
  for (const int value : {1, 2}) {
    auto object = std::make_unique<int>(value);
    EXPECT_TRUE(shelf.Put(&object));
    EXPECT_EQ(object, nullptr);
  }
  auto third = std::make_unique<int>(3);
  EXPECT_FALSE(shelf.Put(&third));
  EXPECT_EQ(*third, 3);
  EXPECT_EQ(*shelf.Take() + *shelf.Take(), 3);
  EXPECT_EQ(shelf.Take(), nullptr);
  EXPECT_TRUE(shelf.Put(&third)) << "and frees it in the end";
}

TEST(ShelfTest, GivesAnObjectToOneThreadAtATime) {
  struct Object {
    std::atomic<bool> in_use{false};
  };
  Shelf<Object, 3> shelf;
  std::atomic<int> made{0}, wrong{0};
  const auto use = [&] {
    for (int i = 0; i < 20000; ++i) {
      std::unique_ptr<Object> object = shelf.Take();
      if (object == nullptr) object = std::make_unique<Object>(), ++made;
      wrong += object->in_use.exchange(true);
      object->in_use = false;
      (void)shelf.Put(&object);
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) threads.emplace_back(use);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_LE(made, 3) << "one for each thread";
}

TEST(GrowingListTest, IsReadWhileItGrows) {
  GrowingList<int, std::string> list;
  EXPECT_EQ(list.Find(0), nullptr);
  std::atomic<int> wrong{0};
  std::thread reader([&] {
    for (int key = 0; key < 200;) {
      const std::string* const found = list.Find(key);
      if (found == nullptr) continue;
      wrong += *found != std::to_string(key);
      ++key;
    }
  });
  for (int key = 0; key < 200; ++key) list.Add(key, std::to_string(key));
  reader.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace tf_interop
