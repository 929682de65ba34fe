#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Returns the status from the function if it is not OK.
#define TANDEM_RETURN_IF_ERROR(expression)                                                       \
  do {                                                                                           \
    if (absl::Status tandem_status_ = (expression); !tandem_status_.ok()) return tandem_status_; \
  } while (false)

// `TANDEM_ASSIGN_OR_RETURN(auto file, OpenFile(path));` leaves the function with the error, or binds the
// value.
#define TANDEM_ASSIGN_OR_RETURN(declaration, expression) \
  TANDEM_ASSIGN_OR_RETURN_(TANDEM_CONCATENATE_(tandem_status_or_, __LINE__), declaration, expression)

#define TANDEM_CONCATENATE_INNER_(a, b) a##b
#define TANDEM_CONCATENATE_(a, b) TANDEM_CONCATENATE_INNER_(a, b)
#define TANDEM_ASSIGN_OR_RETURN_(holder, declaration, expression) \
  auto holder = (expression);                                     \
  if (!holder.ok()) return std::move(holder).status();            \
  declaration = *std::move(holder)
