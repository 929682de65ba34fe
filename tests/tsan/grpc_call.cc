// Shows ThreadSanitizer that the start of a call's operations comes before what sees their end, and what
// handlers of calls do before the end of their server.
//
// gRPC hands operations from thread to thread by locks and atomics of its own, and the distribution's gRPC is
// not built with ThreadSanitizer: what a caller wrote before StartWrite or a unary call seemed to race with
// what the reaction reads. These definitions stand in the executable and therefore come before the library's,
// also for calls from libgrpc++, whose threads get the ends of operations, and with them their tags, out of
// completion queues.

#include <dlfcn.h>
#include <sanitizer/common_interface_defs.h>
#include <sanitizer/tsan_interface.h>

#include "grpc/grpc.h"

namespace {

// The library's own definition of `name`, which has the type of `own`.
template <class Function>
Function* Next(Function* /*own*/, const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

// Stands for all that has happened in calls: a server counts its calls down by atomics and ends after the
// last one.
char calls;

// Starts the symbolizer. A test that uses up its file descriptors could not start it any more when a report
// asks for names, and without names no suppression (tests/tsan.supp) applies.
[[maybe_unused]] const bool symbolizer_has_started = [] {
  char name[64];
  __sanitizer_symbolize_pc(__builtin_return_address(0), "%f", name, sizeof(name));
  return true;
}();

}  // namespace

extern "C" {

grpc_call_error grpc_call_start_batch(grpc_call* call, const grpc_op* ops, size_t num_ops, void* tag,
                                      void* reserved) {
  static const auto next = Next(&grpc_call_start_batch, "grpc_call_start_batch");
  __tsan_release(tag);
  __tsan_release(&calls);
  return next(call, ops, num_ops, tag, reserved);
}

grpc_event grpc_completion_queue_next(grpc_completion_queue* queue, gpr_timespec deadline, void* reserved) {
  static const auto next = Next(&grpc_completion_queue_next, "grpc_completion_queue_next");
  const grpc_event event = next(queue, deadline, reserved);
  if (event.type == GRPC_OP_COMPLETE) __tsan_acquire(event.tag);
  return event;
}

void grpc_server_destroy(grpc_server* server) {
  static const auto next = Next(&grpc_server_destroy, "grpc_server_destroy");
  __tsan_acquire(&calls);
  next(server);
}

}  // extern "C"
