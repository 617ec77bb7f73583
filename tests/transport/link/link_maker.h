// Makes links of one kind, for the tests that must hold for every kind (link_contract_test.cc).
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "proto/frame.pb.h"
#include "transport/link/link.h"

namespace strata {

class LinkMaker {
 public:
  virtual ~LinkMaker() = default;

  struct Options {
    wire::Hello hello;
    bool dialler_allows_mixed = false;
    bool acceptor_allows_mixed = false;
  };
  // Dials one link to `accept`.
  virtual absl::StatusOr<std::unique_ptr<Link>> Dial(Options options, AcceptLinkFn accept,
                                                     Link::Receiver* receiver) = 0;
};

// The maker of this test program's kind.
std::unique_ptr<LinkMaker> MakeLinkMaker();

}  // namespace strata
