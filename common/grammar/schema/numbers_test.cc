#include "common/grammar/schema/numbers.h"

#include <cmath>
#include <cstdint>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

// Hundredths as a plain decimal.
std::string Decimal(int64_t hundredths) {
  return PlainDecimal(absl::StrCat(hundredths, "e-2")).value();
}

TEST(NumbersTest, PlainDecimalsAreExact) {
  EXPECT_EQ(PlainDecimal("1e2").value(), "100");
  EXPECT_EQ(PlainDecimal("-0.0").value(), "0");
  EXPECT_EQ(PlainDecimal("1.50E-3").value(), "0.0015");
  EXPECT_EQ(PlainDecimal("-12.0").value(), "-12");
  EXPECT_EQ(PlainDecimal("0.1234567890123456789012345").value(), "0.1234567890123456789012345");
  EXPECT_FALSE(PlainDecimal("1e999999999").ok());
}

TEST(NumbersTest, BoundsAndMultiplesHoldForAllSpellings) {
  std::mt19937_64 random(9);
  WorkBudget budget(10'000'000'000);
  for (int i = 0; i < 150; ++i) {
    const auto bound = static_cast<int64_t>(random() % 4000) - 2000;
    const auto divisor = static_cast<int64_t>(random() % 300) + 1;
    const bool exclusive = random() % 2 == 0;
    const Language from = NumbersFrom(Decimal(bound), exclusive, &budget).value();
    const Language multiples = MultiplesOf(Decimal(divisor), &budget).value();
    const Language one = OneNumber(Decimal(bound), &budget).value();
    for (int k = 0; k < 40; ++k) {
      const int64_t number = k == 0 ? bound : static_cast<int64_t>(random() % 6000) - 3000;
      for (const char* zeros : {"", "0", "000"}) {
        std::string text = Decimal(number);
        if (*zeros != 0) absl::StrAppend(&text, text.find('.') == std::string::npos ? "." : "", zeros);
        EXPECT_EQ(from.Accepts(text), exclusive ? number > bound : number >= bound) << text << " " << bound;
        EXPECT_EQ(multiples.Accepts(text), number % divisor == 0) << text << " by " << divisor;
        EXPECT_EQ(one.Accepts(text), number == bound) << text;
      }
    }
    EXPECT_FALSE(from.Accepts("-0") || multiples.Accepts("-0.0") || from.Accepts("01") ||
                 multiples.Accepts(""));
  }
}

TEST(NumbersTest, LargeNumbers) {
  WorkBudget budget(10'000'000'000);
  const std::string huge = "1" + std::string(300, '0');
  const Language from = NumbersFrom(huge, false, &budget).value();
  EXPECT_TRUE(from.Accepts(huge));
  EXPECT_FALSE(from.Accepts(std::string(300, '9')));
  const Language thousands = MultiplesOf("7000", &budget).value();
  EXPECT_TRUE(thousands.Accepts("14000.00"));
  EXPECT_TRUE(thousands.Accepts("0"));
  EXPECT_FALSE(thousands.Accepts("1400"));
  EXPECT_FALSE(MultiplesOf("0.123456789", &budget).ok());
}

}  // namespace
}  // namespace tandem
