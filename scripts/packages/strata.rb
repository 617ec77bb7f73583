# For a tap of your own, as there is no release yet; HOMEBREW_STRATA_SOURCE is a clone of the source:
#   brew tap-new me/strata && cp strata.rb "$(brew --repository me/strata)/Formula/"
#   HOMEBREW_STRATA_SOURCE=~/strata brew install --HEAD me/strata/strata
class Strata < Formula
  desc "Pools several machines to run one large language model"
  homepage "file://#{ENV.fetch("HOMEBREW_STRATA_SOURCE", "/")}"
  license all_of: ["Apache-2.0", "GPL-3.0-or-later"] # the demo's model
  head homepage, using: :git

  depends_on "cmake" => :build
  depends_on "ninja" => :build
  depends_on "pkgconf" => :build

  depends_on "abseil"
  depends_on "blake3"
  depends_on "boost" => :build
  depends_on "cli11" => :build
  depends_on "ftxui"
  depends_on "grpc"
  depends_on "libuv"
  depends_on "llama.cpp"
  depends_on "nlohmann-json" => :build
  depends_on "openssl@3"
  depends_on "protobuf"
  depends_on "python@3.14"

  def install
    python = Formula["python@3.14"].opt_bin/"python3.14"
    # Jinja2 has no formula; its folder becomes a part of the program.
    system python, "-m", "pip", "install", "--target", libexec/"python", "jinja2>=3.1.6"
    ENV["PYTHONPATH"] = libexec/"python"
    system "cmake", "-S", ".", "-B", "build", "-G", "Ninja", "-DSTRATA_TESTS=OFF", "-DPython3_EXECUTABLE=#{python}", *std_cmake_args
    system "cmake", "--build", "build"
    system "cmake", "--install", "build"
  end

  service do
    run [opt_bin/"strata", "node"]
    keep_alive successful_exit: false
    log_path var/"log/strata.log"
    error_log_path var/"log/strata.log"
  end

  test do
    assert_match "\"text\"", shell_output("#{bin}/strata demo --json --max-tokens 4")
  end
end
