# Built from a release's source, without GPU support, which macOS has no use for. A release puts its own url and sha256
# here.
class HeadroomTrain < Formula
  desc "Runs a training job to completion in whatever GPU memory there is"
  homepage "https://example.org/headroom"
  url "https://example.org/headroom-0.1.0.tar.gz"
  sha256 "0000000000000000000000000000000000000000000000000000000000000000"
  license "Apache-2.0"

  depends_on "go" => :build

  def install
    ldflags = "-s -w -X main.version=#{version}"
    system "go", "build", *std_go_args(ldflags:, output: bin/"headroom", tags: "urfave_cli_no_docs"), "./cmd/headroom"
    generate_completions_from_executable(bin/"headroom", "completion", shells: [:bash, :zsh, :fish])
    (man1/"headroom.1").write Utils.safe_popen_read(bin/"headroom", "man")
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/headroom version")
    (testpath/"train.py").write "print('trained')"
    assert_equal "trained\n", shell_output("#{bin}/headroom run -- python3 train.py")
  end
end
