"""SPIR-V compute shaders from a program, for any consumer that has 64-bit physical addresses.

`emitter.emit_task` writes one module a task, in binary; `text.disassemble` shows it. What differs between targets is
data in
`target.SpirvTarget`; nothing here knows an interface that loads the code.
"""
