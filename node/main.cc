#include <cstdio>
#include <cstdlib>

#include "node/base/process_setup.h"
#include "node/cli/cli.h"

int main(int argc, char** argv) {
  strata::PrepareProcess();
  const int status = strata::RunCommandLine(argc, argv);
#ifndef __SANITIZE_ADDRESS__  // its leak report comes at the end of exit()
  // gRPC's threads run for as long as the process (transport/rpc/grpc_threads.h): static
  // objects must not be destroyed while they run.
  std::fflush(nullptr);
  std::_Exit(status);
#endif
  return status;
}
