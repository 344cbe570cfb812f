-- The priority of each step, out of its block of 1,024 positions; NULL for a step that has none.
-- SQLite cannot read a float64 from a blob. So its bits are taken from the hexadecimal digits, and
-- the number is computed from them as IEEE 754 defines it. This is exact, as it is scaled by powers
-- of two only. Each LIMIT keeps SQLite from repeating an expression wherever its name is used.
CREATE VIEW step_priorities AS
SELECT s.buffer_id, s.position,
       (SELECT CASE WHEN digits = '7FF8000000000000' THEN NULL WHEN power < 0 THEN whole / scale ELSE whole * scale END
        FROM (SELECT digits, power, whole, (CASE WHEN magnitude & 1 THEN 2.0 ELSE 1.0 END) * (CASE WHEN magnitude & 2 THEN 4.0 ELSE 1.0 END) * (CASE WHEN magnitude & 4 THEN 16.0 ELSE 1.0 END) * (CASE WHEN magnitude & 8 THEN 256.0 ELSE 1.0 END) * (CASE WHEN magnitude & 16 THEN 65536.0 ELSE 1.0 END) * (CASE WHEN magnitude & 32 THEN 4294967296.0 ELSE 1.0 END) * (CASE WHEN magnitude & 64 THEN 4294967296.0 * 4294967296.0 ELSE 1.0 END) * (CASE WHEN magnitude & 128 THEN 4294967296.0 * 4294967296.0 * 4294967296.0 * 4294967296.0 ELSE 1.0 END) * (CASE WHEN magnitude & 256 THEN 4294967296.0 * 4294967296.0 * 4294967296.0 * 4294967296.0 * 4294967296.0 * 4294967296.0 * 4294967296.0 * 4294967296.0 ELSE 1.0 END) * (CASE WHEN magnitude & 512 THEN 4294967296.0 * 4294967296.0 * 4294967296.0 * 4294967296.0 * 4294967296.0 * 4294967296.0 * 4294967296.0 * 4294967296.0 * 4294967296.0 * 4294967296.0 * 4294967296.0 * 4294967296.0 * 4294967296.0 * 4294967296.0 * 4294967296.0 * 4294967296.0 ELSE 1.0 END) AS scale
        FROM (SELECT digits, power, abs(power) AS magnitude,
                     CASE WHEN bits >> 52 THEN (bits & 4503599627370495 | 4503599627370496) / 4503599627370496.0
                          ELSE (bits & 4503599627370495) / 4503599627370496.0 * 2.0 END AS whole
        FROM (SELECT digits, bits, (bits >> 52) - 1023 AS power
        FROM (SELECT digits, ((instr('0123456789ABCDEF', substr(digits, 1, 1)) - 1) << 60) | ((instr('0123456789ABCDEF', substr(digits, 2, 1)) - 1) << 56) | ((instr('0123456789ABCDEF', substr(digits, 3, 1)) - 1) << 52) | ((instr('0123456789ABCDEF', substr(digits, 4, 1)) - 1) << 48) | ((instr('0123456789ABCDEF', substr(digits, 5, 1)) - 1) << 44) | ((instr('0123456789ABCDEF', substr(digits, 6, 1)) - 1) << 40) | ((instr('0123456789ABCDEF', substr(digits, 7, 1)) - 1) << 36) | ((instr('0123456789ABCDEF', substr(digits, 8, 1)) - 1) << 32) | ((instr('0123456789ABCDEF', substr(digits, 9, 1)) - 1) << 28) | ((instr('0123456789ABCDEF', substr(digits, 10, 1)) - 1) << 24) | ((instr('0123456789ABCDEF', substr(digits, 11, 1)) - 1) << 20) | ((instr('0123456789ABCDEF', substr(digits, 12, 1)) - 1) << 16) | ((instr('0123456789ABCDEF', substr(digits, 13, 1)) - 1) << 12) | ((instr('0123456789ABCDEF', substr(digits, 14, 1)) - 1) << 8) | ((instr('0123456789ABCDEF', substr(digits, 15, 1)) - 1) << 4) | ((instr('0123456789ABCDEF', substr(digits, 16, 1)) - 1) << 0) AS bits
        FROM (SELECT hex(substr(p.data, 1 + 8 * (s.position & 1023), 8)) AS digits
              FROM priorities p WHERE p.buffer_id = s.buffer_id AND p.block = s.position >> 10
              LIMIT 1) LIMIT 1) LIMIT 1) LIMIT 1) LIMIT 1)) AS priority
FROM steps s
