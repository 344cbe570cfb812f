-- The priority of each step that has one, out of its block of 1,024 positions. SQLite cannot read a
-- float64 from a blob, so its bits are taken from the hexadecimal digits and the number is made of
-- them as IEEE 754 says; exactly, as it is scaled by powers of two only. NaN stands for none.
CREATE VIEW step_priorities AS
SELECT buffer_id, position, CASE WHEN power < 0
     THEN whole / ((CASE WHEN abs(power) & 1 THEN 2.0 ELSE 1.0 END)
       * (CASE WHEN abs(power) & 2 THEN 4.0 ELSE 1.0 END)
       * (CASE WHEN abs(power) & 4 THEN 16.0 ELSE 1.0 END)
       * (CASE WHEN abs(power) & 8 THEN 256.0 ELSE 1.0 END)
       * (CASE WHEN abs(power) & 16 THEN 65536.0 ELSE 1.0 END)
       * (CASE WHEN abs(power) & 32 THEN 4294967296.0 ELSE 1.0 END)
       * (CASE WHEN abs(power) & 64 THEN 4294967296.0 * 4294967296.0 ELSE 1.0 END)
       * (CASE WHEN abs(power) & 128 THEN 4294967296.0 * 4294967296.0 * 4294967296.0 * 4294967296.0
           ELSE 1.0 END)
       * (CASE WHEN abs(power) & 256 THEN 4294967296.0 * 4294967296.0 * 4294967296.0 * 4294967296.0
           * 4294967296.0 * 4294967296.0 * 4294967296.0 * 4294967296.0 ELSE 1.0 END)
       * (CASE WHEN abs(power) & 512 THEN 4294967296.0 * 4294967296.0 * 4294967296.0 * 4294967296.0
           * 4294967296.0 * 4294967296.0 * 4294967296.0 * 4294967296.0 * 4294967296.0 * 4294967296.0
           * 4294967296.0 * 4294967296.0 * 4294967296.0 * 4294967296.0 * 4294967296.0 * 4294967296.0
           ELSE 1.0 END))
     ELSE whole * ((CASE WHEN abs(power) & 1 THEN 2.0 ELSE 1.0 END)
       * (CASE WHEN abs(power) & 2 THEN 4.0 ELSE 1.0 END)
       * (CASE WHEN abs(power) & 4 THEN 16.0 ELSE 1.0 END)
       * (CASE WHEN abs(power) & 8 THEN 256.0 ELSE 1.0 END)
       * (CASE WHEN abs(power) & 16 THEN 65536.0 ELSE 1.0 END)
       * (CASE WHEN abs(power) & 32 THEN 4294967296.0 ELSE 1.0 END)
       * (CASE WHEN abs(power) & 64 THEN 4294967296.0 * 4294967296.0 ELSE 1.0 END)
       * (CASE WHEN abs(power) & 128 THEN 4294967296.0 * 4294967296.0 * 4294967296.0 * 4294967296.0
           ELSE 1.0 END)
       * (CASE WHEN abs(power) & 256 THEN 4294967296.0 * 4294967296.0 * 4294967296.0 * 4294967296.0
           * 4294967296.0 * 4294967296.0 * 4294967296.0 * 4294967296.0 ELSE 1.0 END)
       * (CASE WHEN abs(power) & 512 THEN 4294967296.0 * 4294967296.0 * 4294967296.0 * 4294967296.0
           * 4294967296.0 * 4294967296.0 * 4294967296.0 * 4294967296.0 * 4294967296.0 * 4294967296.0
           * 4294967296.0 * 4294967296.0 * 4294967296.0 * 4294967296.0 * 4294967296.0 * 4294967296.0
           ELSE 1.0 END)) END AS priority
FROM (SELECT buffer_id, position,
             CASE WHEN bits >> 52 THEN
                  (bits & 4503599627370495 | 4503599627370496) / 4503599627370496.0
                  ELSE (bits & 4503599627370495) / 4503599627370496.0 * 2.0 END AS whole,
             (bits >> 52) - 1023 AS power
      FROM (SELECT buffer_id, position,
           ((instr('0123456789ABCDEF', substr(digits, 1, 1)) - 1) << 60)
           | ((instr('0123456789ABCDEF', substr(digits, 2, 1)) - 1) << 56)
           | ((instr('0123456789ABCDEF', substr(digits, 3, 1)) - 1) << 52)
           | ((instr('0123456789ABCDEF', substr(digits, 4, 1)) - 1) << 48)
           | ((instr('0123456789ABCDEF', substr(digits, 5, 1)) - 1) << 44)
           | ((instr('0123456789ABCDEF', substr(digits, 6, 1)) - 1) << 40)
           | ((instr('0123456789ABCDEF', substr(digits, 7, 1)) - 1) << 36)
           | ((instr('0123456789ABCDEF', substr(digits, 8, 1)) - 1) << 32)
           | ((instr('0123456789ABCDEF', substr(digits, 9, 1)) - 1) << 28)
           | ((instr('0123456789ABCDEF', substr(digits, 10, 1)) - 1) << 24)
           | ((instr('0123456789ABCDEF', substr(digits, 11, 1)) - 1) << 20)
           | ((instr('0123456789ABCDEF', substr(digits, 12, 1)) - 1) << 16)
           | ((instr('0123456789ABCDEF', substr(digits, 13, 1)) - 1) << 12)
           | ((instr('0123456789ABCDEF', substr(digits, 14, 1)) - 1) << 8)
           | ((instr('0123456789ABCDEF', substr(digits, 15, 1)) - 1) << 4)
           | ((instr('0123456789ABCDEF', substr(digits, 16, 1)) - 1) << 0)
           AS bits
            FROM (SELECT s.buffer_id, s.position,
                         hex(substr(p.data, 1 + 8 * (s.position & 1023), 8)) AS digits
                  FROM steps s JOIN priorities p ON p.buffer_id = s.buffer_id
                      AND p.block = s.position >> 10)
            WHERE digits <> '7FF8000000000000'))
