"""What is counted in optimized HLO of programs with rings; compiling them takes the extras."""

from benchmarks.rings import Found, permutes

TEXT = """HloModule m, is_scheduled=true, num_partitions=4

%fused (p.0: f32[8,8], p.1: f32[8,8]) -> f32[8,8] {
  %p.0 = f32[8,8]{1,0} parameter(0)
  %p.1 = f32[8,8]{1,0} parameter(1)
  ROOT %c = f32[8,8]{1,0} convolution(%p.0, %p.1), dim_labels=bf_io->bf
}

ENTRY %main (x: f32[8,8], w: f32[8,8]) -> f32[8,8] {
  %x = f32[8,8]{1,0} parameter(0)
  %w = f32[8,8]{1,0} parameter(1)
  %s.0 = (f32[8,8]{1,0}, f32[8,8]{1,0}) collective-permute-start(%x), channel_id=1, source_target_pairs={{0,1},{1,0}}
  %s.1 = (f32[8,8]{1,0}, f32[8,8]{1,0}) collective-permute-start(%w), channel_id=2, source_target_pairs={{0,1},{1,0}}
  %d.1 = f32[8,8]{1,0} collective-permute-done(%s.1)
  %f = f32[8,8]{1,0} fusion(%x, %w), kind=kOutput, calls=%fused
  %d.0 = f32[8,8]{1,0} collective-permute-done(%s.0)
  %s.2 = (f32[8,8]{1,0}, f32[8,8]{1,0}) collective-permute-start(%f), channel_id=3, source_target_pairs={{0,1},{1,0}}
  %g = (f32[8,8]{1,0}, s8[64]{0}) custom-call(%d.0, %w), custom_call_target="__cublas$lt$matmul"
  %d.2 = f32[8,8]{1,0} collective-permute-done(%s.2)
  ROOT %b = f32[8,8]{1,0} collective-permute(%d.2), channel_id=4, source_target_pairs={{0,1},{1,0}}
}
"""


def test_permutes():
    """One has no product beside it, and one blocks."""
    assert permutes(TEXT) == Found(blocking=1, asynchronous=3, covered=2)
    assert permutes("HloModule m\n\nENTRY %main () -> f32[] {\n  ROOT %c = f32[] constant(0)\n}\n") == Found(
        0, 0, 0
    )
