#include "bench/plan/plan.h"

namespace tandem::plan {

double Layout::PricePerHour() const {
  double price = verifiers.count * verifiers.price_per_hour;
  for (const DrafterGroup& group : drafters) price += group.count * group.price_per_hour;
  return price;
}

}  // namespace tandem::plan
