#include "cc_kernels/core/host/stream.h"

#include <exception>
#include <new>
#include <string>
#include <utility>

namespace tf_interop {
namespace {

Status RunGuarded(const std::function<Status()>& work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("Out of host memory on a host stream.");
  } catch (const std::exception& error) {
    return Internal(std::string("Work on a host stream failed: ") + error.what());
  }
}

}  // namespace

HostStream::~HostStream() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void HostStream::EnqueueWork(std::function<Status()> work) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    queue_.push_back(std::move(work));
  }
  changed_.notify_one();
}

void HostStream::Synchronize() {
  const auto reached = std::make_shared<std::promise<void>>();
  Enqueue([reached] { reached->set_value(); });
  reached->get_future().wait();
}

Status HostStream::TakeError() {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(error_, Status::Ok());
}

void HostStream::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return closing_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const std::function<Status()> work = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    const Status status = RunGuarded(work);
    lock.lock();
    error_.Update(status);
  }
}

}  // namespace tf_interop
