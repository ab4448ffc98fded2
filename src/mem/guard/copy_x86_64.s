// The routines whose faults are recoverable: see x86_64.rs for their contract.
// A fault in the middle of an AVX loop leaves the upper halves dirty, which costs a little time and nothing else.
// Everything between urxe_mem_begin and urxe_mem_end must be a leaf that never moves the stack pointer.

.text
.p2align 6
.globl urxe_mem_begin
.hidden urxe_mem_begin
urxe_mem_begin:

// rdi = to (ours), rsi = from (theirs), rdx = len, rcx = length from which the string instruction is faster,
// r8d = whether there is AVX
.globl urxe_mem_copy_in
.hidden urxe_mem_copy_in
.type urxe_mem_copy_in, @function
urxe_mem_copy_in:
.cfi_startproc
    cmp rdx, 16
    jb 30f
    cmp rdx, 32
    ja 21f
    movups xmm0, [rsi]
    movups xmm1, [rsi + rdx - 16]
    movups [rdi], xmm0
    movups [rdi + rdx - 16], xmm1
    xor eax, eax
    xor edx, edx
    ret
21:
    cmp rdx, 64
    ja 22f
    movups xmm0, [rsi]
    movups xmm1, [rsi + 16]
    movups xmm2, [rsi + rdx - 32]
    movups xmm3, [rsi + rdx - 16]
    movups [rdi], xmm0
    movups [rdi + 16], xmm1
    movups [rdi + rdx - 32], xmm2
    movups [rdi + rdx - 16], xmm3
    xor eax, eax
    xor edx, edx
    ret
22:
    cmp rdx, rcx
    jae 24f
    test r8b, r8b
    jz 26f
    cmp rdx, 128
    jb 26f
    lea r8, [rsi + rdx - 128]
    lea r9, [rdi + rdx - 128]
    // the first 32 bytes, then on from the next aligned place of ours
    vmovdqu ymm0, [rsi]
    vmovdqu [rdi], ymm0
    mov rax, rdi
    or rax, 31
    inc rax
    sub rax, rdi
    add rsi, rax
    add rdi, rax
    cmp rsi, r8
    jae 27f
.p2align 4
25:
    vmovdqu ymm0, [rsi]
    vmovdqu ymm1, [rsi + 32]
    vmovdqu ymm2, [rsi + 64]
    vmovdqu ymm3, [rsi + 96]
    vmovdqa [rdi], ymm0
    vmovdqa [rdi + 32], ymm1
    vmovdqa [rdi + 64], ymm2
    vmovdqa [rdi + 96], ymm3
    sub rsi, -128
    sub rdi, -128
    cmp rsi, r8
    jb 25b
27:
    // the last 128 bytes, which may overlap what is copied already
    vmovdqu ymm0, [r8]
    vmovdqu ymm1, [r8 + 32]
    vmovdqu ymm2, [r8 + 64]
    vmovdqu ymm3, [r8 + 96]
    vmovdqu [r9], ymm0
    vmovdqu [r9 + 32], ymm1
    vmovdqu [r9 + 64], ymm2
    vmovdqu [r9 + 96], ymm3
    vzeroupper
    xor eax, eax
    xor edx, edx
    ret
26:
    lea r8, [rsi + rdx - 64]
    lea r9, [rdi + rdx - 64]
.p2align 4
23:
    movups xmm0, [rsi]
    movups xmm1, [rsi + 16]
    movups xmm2, [rsi + 32]
    movups xmm3, [rsi + 48]
    movups [rdi], xmm0
    movups [rdi + 16], xmm1
    movups [rdi + 32], xmm2
    movups [rdi + 48], xmm3
    add rsi, 64
    add rdi, 64
    cmp rsi, r8
    jb 23b
    // the last 64 bytes, which may overlap what is copied already
    movups xmm0, [r8]
    movups xmm1, [r8 + 16]
    movups xmm2, [r8 + 32]
    movups xmm3, [r8 + 48]
    movups [r9], xmm0
    movups [r9 + 16], xmm1
    movups [r9 + 32], xmm2
    movups [r9 + 48], xmm3
    xor eax, eax
    xor edx, edx
    ret
24:
    mov rcx, rdx
    rep movsb
    xor eax, eax
    xor edx, edx
    ret
30:
    cmp edx, 8
    jb 31f
    mov rax, [rsi]
    mov rcx, [rsi + rdx - 8]
    mov [rdi], rax
    mov [rdi + rdx - 8], rcx
    xor eax, eax
    xor edx, edx
    ret
31:
    cmp edx, 4
    jb 32f
    mov eax, [rsi]
    mov ecx, [rsi + rdx - 4]
    mov [rdi], eax
    mov [rdi + rdx - 4], ecx
    xor eax, eax
    xor edx, edx
    ret
32:
    test edx, edx
    jz 33f
    // first, middle and last byte of 1, 2 or 3
    mov r9, rdx
    shr r9, 1
    movzx eax, byte ptr [rsi]
    movzx r8d, byte ptr [rsi + r9]
    movzx ecx, byte ptr [rsi + rdx - 1]
    mov [rdi], al
    mov [rdi + r9], r8b
    mov [rdi + rdx - 1], cl
33:
    xor eax, eax
    xor edx, edx
    ret
.cfi_endproc
.size urxe_mem_copy_in, . - urxe_mem_copy_in

// rdi = to (theirs), rsi = from (ours), rdx = len, rcx = length from which the string instruction is faster,
// r8d = whether there is AVX
//
// The range is split into a body and its last word: the part of the last naturally aligned 8 bytes that it covers.
// x86 makes stores visible in program order, and a string instruction as a whole before the stores after it, so
// the last word becomes visible after everything else.
.p2align 4
.globl urxe_mem_copy_out
.hidden urxe_mem_copy_out
.type urxe_mem_copy_out, @function
urxe_mem_copy_out:
.cfi_startproc
    test rdx, rdx
    jz 59f
    mov r11d, r8d
    lea r8, [rdi + rdx]
    lea r9, [r8 - 1]
    and r9, -8
    cmp r9, rdi
    jbe 50f
    // the body ends at r9, which is aligned: bring its start to the same alignment
    test dil, 7
    jz 43f
    test dil, 1
    jz 40f
    movzx eax, byte ptr [rsi]
    mov [rdi], al
    inc rsi
    inc rdi
40:
    test dil, 2
    jz 41f
    movzx eax, word ptr [rsi]
    mov [rdi], ax
    add rsi, 2
    add rdi, 2
41:
    test dil, 4
    jz 42f
    mov eax, [rsi]
    mov [rdi], eax
    add rsi, 4
    add rdi, 4
42:
    cmp rdi, r9
    je 50f
43:
    mov r10, r9
    sub r10, rdi
    cmp r10, rcx
    jae 49f
    test dil, 8
    jz 44f
    mov rax, [rsi]
    mov [rdi], rax
    add rsi, 8
    add rdi, 8
    sub r10, 8
44:
    cmp r10, 144
    jb 60f
    test r11b, r11b
    jz 60f
    test dil, 16
    jz 61f
    movups xmm0, [rsi]
    movaps [rdi], xmm0
    add rsi, 16
    add rdi, 16
    sub r10, 16
61:
    sub r10, 128
.p2align 4
62:
    vmovdqu ymm0, [rsi]
    vmovdqu ymm1, [rsi + 32]
    vmovdqu ymm2, [rsi + 64]
    vmovdqu ymm3, [rsi + 96]
    vmovdqa [rdi], ymm0
    vmovdqa [rdi + 32], ymm1
    vmovdqa [rdi + 64], ymm2
    vmovdqa [rdi + 96], ymm3
    sub rsi, -128
    sub rdi, -128
    sub r10, 128
    jae 62b
    vzeroupper
    add r10, 128
60:
    sub r10, 64
    jb 46f
.p2align 4
45:
    movups xmm0, [rsi]
    movups xmm1, [rsi + 16]
    movups xmm2, [rsi + 32]
    movups xmm3, [rsi + 48]
    movaps [rdi], xmm0
    movaps [rdi + 16], xmm1
    movaps [rdi + 32], xmm2
    movaps [rdi + 48], xmm3
    add rsi, 64
    add rdi, 64
    sub r10, 64
    jae 45b
46:
    // r10 is the rest minus 64, so its low six bits are the rest: a multiple of 8
    test r10b, 32
    jz 47f
    movups xmm0, [rsi]
    movups xmm1, [rsi + 16]
    movaps [rdi], xmm0
    movaps [rdi + 16], xmm1
    add rsi, 32
    add rdi, 32
47:
    test r10b, 16
    jz 48f
    movups xmm0, [rsi]
    movaps [rdi], xmm0
    add rsi, 16
    add rdi, 16
48:
    test r10b, 8
    jz 50f
    mov rax, [rsi]
    mov [rdi], rax
    add rsi, 8
    add rdi, 8
    jmp 50f
49:
    mov rcx, r10
    rep movsb
50:
    // the last word: 1 to 8 bytes that do not cross an aligned 8 bytes
    sub r8, rdi
    cmp r8d, 8
    jne 51f
    mov rax, [rsi]
    mov [rdi], rax
    xor eax, eax
    xor edx, edx
    ret
51:
    test dil, 1
    jz 52f
    movzx eax, byte ptr [rsi]
    mov [rdi], al
    inc rsi
    inc rdi
    dec r8d
52:
    test dil, 2
    jz 53f
    cmp r8d, 2
    jb 53f
    movzx eax, word ptr [rsi]
    mov [rdi], ax
    add rsi, 2
    add rdi, 2
    sub r8d, 2
53:
    test r8d, 4
    jz 54f
    mov eax, [rsi]
    mov [rdi], eax
    add rsi, 4
    add rdi, 4
54:
    test r8d, 2
    jz 55f
    movzx eax, word ptr [rsi]
    mov [rdi], ax
    add rsi, 2
    add rdi, 2
55:
    test r8d, 1
    jz 59f
    movzx eax, byte ptr [rsi]
    mov [rdi], al
59:
    xor eax, eax
    xor edx, edx
    ret
.cfi_endproc
.size urxe_mem_copy_out, . - urxe_mem_copy_out

// rdi = at, rsi = compare, rdx = swap
.p2align 4
.globl urxe_mem_compare_swap
.hidden urxe_mem_compare_swap
.type urxe_mem_compare_swap, @function
urxe_mem_compare_swap:
.cfi_startproc
    mov rax, rsi
    lock cmpxchg [rdi], rdx
    xor edx, edx
    ret
.cfi_endproc
.size urxe_mem_compare_swap, . - urxe_mem_compare_swap

// rdi = at, rsi = add
.p2align 4
.globl urxe_mem_fetch_add
.hidden urxe_mem_fetch_add
.type urxe_mem_fetch_add, @function
urxe_mem_fetch_add:
.cfi_startproc
    lock xadd [rdi], rsi
    mov rax, rsi
    xor edx, edx
    ret
.cfi_endproc
.size urxe_mem_fetch_add, . - urxe_mem_fetch_add

.globl urxe_mem_end
.hidden urxe_mem_end
urxe_mem_end:

// Where the handler sends a faulting routine, with the address in rax.
.globl urxe_mem_landing
.hidden urxe_mem_landing
.type urxe_mem_landing, @function
urxe_mem_landing:
.cfi_startproc
    mov edx, 1
    ret
.cfi_endproc
.size urxe_mem_landing, . - urxe_mem_landing

// What a signal handler returns to. Debuggers and unwinders recognise a signal frame by exactly these bytes at the
// return address, and only when no unwind table covers it (nor the byte before it).
    nop
.globl urxe_mem_restorer
.hidden urxe_mem_restorer
.type urxe_mem_restorer, @function
urxe_mem_restorer:
    .byte 0x48, 0xc7, 0xc0, 0x0f, 0x00, 0x00, 0x00
    syscall
.size urxe_mem_restorer, . - urxe_mem_restorer
    ud2
