// Three balls go round a fourth on a chequered floor. POV-Ray 3.7; its clock (+K) goes from 0 to 1 once round.
#version 3.7;
global_settings { assumed_gamma 1.0 }

camera { location <0, 2.6, -6.2> look_at <0, 0.7, 0> angle 50 right x * image_width / image_height }
light_source { <-5, 8, -5> color rgb <1, 1, 1> }
sky_sphere { pigment { gradient y color_map { [0 rgb <0.75, 0.85, 1>] [1 rgb <0.25, 0.45, 0.85>] } } }

plane {
  y, 0
  pigment { checker color rgb <0.9, 0.9, 0.85> color rgb <0.2, 0.25, 0.3> }
  finish { ambient 0.15 diffuse 0.75 reflection 0.15 }
}

#macro Ball(Middle, Size, Colour)
  sphere {
    Middle, Size
    pigment { color Colour }
    finish { ambient 0.15 diffuse 0.75 phong 0.6 phong_size 60 reflection 0.3 }
  }
#end

Ball(<0, 1, 0>, 1, rgb <0.85, 0.25, 0.2>)
#for (Number, 0, 2)
  #local Angle = 2 * pi * (clock + Number / 3);
  Ball(<2.2 * cos(Angle), 0.5, 2.2 * sin(Angle)>, 0.5, rgb <0.2 + 0.3 * Number, 0.7 - 0.2 * Number, 0.9 - 0.3 * Number>)
#end
