// Everything is in metal_stdlib.
#include <metal_stdlib>
