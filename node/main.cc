#include "node/cli.h"

int main(int argc, char** argv) { return strata::RunCommandLine(argc, argv); }
